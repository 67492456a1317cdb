"""Keep of a pod what the enforcer reads, and no more: pods that never start may be large, and anybody makes them. Pure.

``Books`` calls this for each pod of the node as it comes from the API server, so that no whole
pod stays in memory. The result has the shape of a pod, with strings of its own.

Who may write what is kept:

- ``metadata`` (name, namespace, uid, deletion): the API server; a deletion is asked for by the tenant.
- ``metadata.annotations`` (resize requests): the tenant, with a right that a policy asks for.
- ``spec``: who creates the pod; nobody changes it later. The scheduler sets ``nodeName``.
- ``status``: the kubelet, and every tenant with the right to ``pods/status``. No decision about a quota or a kill may
  rest on it: ``TENANT_FIELDS`` names its fields, and a house rule which modules may read them.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from gpushare import contract
from gpushare.resize_annotation import MAX_LENGTH

Object = dict[str, Any]
MOST_USES: Final = 256
"""Entries of ``resources.claims`` of all containers, and of ``spec.resourceClaims``; a pod with more gets no share."""
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_METADATA: Final = ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds")
_STATUSES: Final = ("initContainerStatuses", "containerStatuses")
TENANT_FIELDS: Final = frozenset({*_STATUSES, "containerID", "lastState", "phase", "terminated"})
"""Of ``status``, what tenants may write. The claims in there are compared with the claims themselves."""
_ENTRY: Final = ("name", "resourceClaimName")
_SECTIONS: Final = ("initContainers", "containers")
_VARIABLES: Final = frozenset({contract.MEMORY_MIB, contract.MPS_THREAD_PERCENTAGE})
_TERMINATED: Final = ("containerID", "exitCode", "startedAt", "finishedAt", "reason", "signal")
_TEXT: Final = 512
"""Characters of a value that are kept; names and times of Kubernetes are shorter."""


def kept_pod(pod: Mapping[str, Any], *, mapped: bool = False) -> Object:
    """Return the fields of a pod that the enforcer reads.

    Args:
        pod: as the API server has it.
        mapped: whether to keep containers, too, that use a claim only by ``requestMappings``.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    found: Object = {"metadata": _some(metadata, _METADATA), "status": {"phase": status.get("phase")}}
    if requested := _resize_requests(metadata.get("annotations") or {}):
        found["metadata"]["annotations"] = requested
    for kind in _STATUSES:
        found["status"][kind] = [_status(each) for each in status.get(kind) or () if each.get("containerID")]
    spec = pod.get("spec") or {}
    found["spec"] = {"nodeName": spec.get("nodeName")}
    started = any(found["status"][kind] for kind in _STATUSES)
    if started or status.get("phase") not in _FINISHED:
        found["status"] |= (made := _made(status))
        mappings = made["extendedResourceClaimStatus"]["requestMappings"] if mapped else ()
        found["spec"] |= _claims(spec, {each.get("containerName") for each in mappings} - {None})
    if started:
        found["spec"]["resourceClaims"] += _beyond(spec.get("resourceClaims"))
        found["status"]["resourceClaimStatuses"] += _beyond(status.get("resourceClaimStatuses"))
    return found


def too_many(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod uses more claims than are kept of it."""
    spec = pod.get("spec") or {}
    uses = sum(len((each.get("resources") or {}).get("claims") or ()) for each in _containers(spec))
    return max(uses, len(spec.get("resourceClaims") or ())) > MOST_USES


def _claims(spec: Mapping[str, Any], mapped: Container[Any]) -> Object:
    """Keep the containers that use claims: those that name one, and those that are mapped to one."""
    entries = islice(spec.get("resourceClaims") or (), MOST_USES)
    left = MOST_USES
    found: Object = {"resourceClaims": [_some(each, _ENTRY) for each in entries]}
    for section in _SECTIONS:
        found[section] = []
        for container in spec.get(section) or ():
            claims = ((container.get("resources") or {}).get("claims") or ())[:left]
            left -= len(claims)
            if claims or container.get("name") in mapped:
                found[section].append(_container(container, claims))
    return found


def _beyond(entries: Sequence[Mapping[str, Any]] | None) -> list[Object]:
    """Name each claim that stands behind the first entries, once.

    A pod may use a claim that was prepared for another pod: nobody can refuse it then, so that it has to be seen. All
    claims of a pod that started exist, which bounds their number.
    """
    rest = islice(entries or (), MOST_USES, None)
    return list({each.get("resourceClaimName"): _some(each, _ENTRY) for each in rest}.values())


def _container(container: Mapping[str, Any], claims: Iterable[Mapping[str, Any]]) -> Object:
    last = {each["name"]: each.get("value") for each in container.get("env") or () if each.get("name") in _VARIABLES}
    return _some(container, ("name", "restartPolicy")) | {
        "resources": {"claims": [_some(each, ("name", "request")) for each in claims]},
        "env": [{"name": name, "value": _cut(value)} for name, value in last.items()],
    }


def _made(status: Mapping[str, Any]) -> Object:
    """Which claims stand behind the entries, and which one the scheduler made."""
    statuses = islice(status.get("resourceClaimStatuses") or (), MOST_USES)
    extended = status.get("extendedResourceClaimStatus") or {}
    mappings = islice(extended.get("requestMappings") or (), MOST_USES)
    return {
        "resourceClaimStatuses": [_some(each, _ENTRY) for each in statuses],
        "extendedResourceClaimStatus": _some(extended, ("resourceClaimName",))
        | {"requestMappings": [_some(each, ("containerName", "requestName")) for each in mappings]},
    }


def _resize_requests(annotations: Mapping[str, Any]) -> Object:
    """Keep requests for another quota; one that is too long stays too long."""
    ours = (each for each in annotations.items() if each[0].startswith(contract.RESIZE_OF))
    return {_cut(key): str(value)[: MAX_LENGTH + 1] for key, value in islice(ours, MOST_USES)}


def _status(status: Mapping[str, Any]) -> Object:
    found = _some(status, ("name",))
    for state in ("state", "lastState"):
        now = status.get(state) or {}
        if ended := now.get("terminated"):
            found[state] = {"terminated": _some(ended, _TERMINATED)}
        elif "running" in now:
            found[state] = {"running": {}}
    return found


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for section in _SECTIONS:
        yield from spec.get(section) or ()


def _some(source: Mapping[str, Any], keys: Iterable[str]) -> Object:
    return {key: _cut(source[key]) for key in keys if source.get(key) is not None}


def _cut(value: Any) -> Any:
    return value[:_TEXT] if isinstance(value, str) else value
