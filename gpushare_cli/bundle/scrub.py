"""Take out of an object what may be a secret: environment values, annotations of others, arguments of others. Pure.

What may stay is listed, wherever a tenant can write: a field that Kubernetes adds later is not in the archive.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.raw_objects import Object, mapping, objects

ANNOTATIONS: Final = frozenset({
    "deployment.kubernetes.io/revision", "kubectl.kubernetes.io/default-container", "meta.helm.sh/release-name",
    "meta.helm.sh/release-namespace",
})  # fmt: skip
"""Annotations that stay besides our own."""
DROPPED: Final = frozenset({"managedFields", "stringData", "binaryData"})
"""Keys that go wherever they are."""
METADATA: Final = (
    "name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp", "generation",
    "ownerReferences", "finalizers",
)  # fmt: skip
CONTAINERS: Final = ("initContainers", "containers")
CONTAINER: Final = ("name", "image", "env", "envFrom", "resources", "restartPolicy")
POD: Final = (
    "nodeName", "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName", "schedulerName",
    "schedulingGates", "resourceClaims", "restartPolicy", "serviceAccountName",
)  # fmt: skip
STATUSES: Final = ("initContainerStatuses", "containerStatuses")
POD_STATUS: Final = (
    "phase", "reason", "message", "conditions", "startTime", "qosClass", "resourceClaimStatuses",
    "extendedResourceClaimStatus", "nominatedNodeName",
)  # fmt: skip
STATUS: Final = ("name", "image", "ready", "started", "restartCount", "allocatedResourcesStatus")
ENDED: Final = ("reason", "exitCode", "signal", "startedAt", "finishedAt")
"""The message of a container that has ended is the tenant's own."""
NODE: Final = ("conditions", "capacity", "allocatable", "nodeInfo")
EVENT: Final = (
    "type", "reason", "message", "action", "reportingComponent", "reportingInstance", "source", "involvedObject",
    "eventTime", "firstTimestamp", "lastTimestamp", "count", "series",
)  # fmt: skip


def scrubbed(value: Object) -> dict[str, Any]:
    """Return an object of the release, or one that no tenant writes, without secrets and environment values."""
    return {
        **_walked({key: part for key, part in value.items() if key != "data"}),
        "metadata": _metadata(mapping(value, "metadata")),
    }


def tenant_pod(pod: Object) -> dict[str, Any]:
    """Return what may be shown of a pod that a tenant wrote."""
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    return {
        "metadata": _metadata(mapping(pod, "metadata")),
        "spec": {**_walked(_only(spec, POD)), **_each(spec, CONTAINERS, lambda one: _walked(_only(one, CONTAINER)))},
        "status": {**_only(status, POD_STATUS), **_each(status, STATUSES, _container_status)},
    }


def claim(item: Object) -> dict[str, Any]:
    """Return what may be shown of a claim."""
    return _parts(item, ("spec", "status"), _walked)


def node(item: Object) -> dict[str, Any]:
    """Return what may be shown of a node."""
    found = _parts(item, ("spec", "status"), lambda part: part)
    return {**found, "spec": _only(found["spec"], ("taints", "unschedulable")), "status": _only(found["status"], NODE)}


def namespace(item: Object) -> dict[str, Any]:
    """Return what may be shown of a namespace: its labels, and our annotations."""
    return _parts(item, (), lambda part: part)


def event(item: Object) -> dict[str, Any]:
    """Return what may be shown of an Event."""
    return {"metadata": _only(mapping(item, "metadata"), ("name", "namespace")), **_only(item, EVENT)}


def _parts(item: Object, keys: Iterable[str], read: Callable[[Object], dict[str, Any] | Object]) -> dict[str, Any]:
    return {"metadata": _metadata(mapping(item, "metadata")), **{key: read(mapping(item, key)) for key in keys}}


def _metadata(metadata: Object) -> dict[str, Any]:
    return _walked(_only(metadata, METADATA))


def _container_status(status: Object) -> dict[str, Any]:
    found = _only(status, STATUS)
    for key in (each for each in ("state", "lastState") if each in status):
        state = mapping(status, key)
        ended = {"terminated": _only(mapping(state, "terminated"), ENDED)} if "terminated" in state else {}
        found[key] = {**_only(state, ("running", "waiting")), **ended}
    return found


def _walked(value: Object) -> dict[str, Any]:
    """Go through an object of any shape and drop what may be a secret wherever it is."""
    foreign = "driver" in value and value["driver"] != contract.DRIVER
    found: dict[str, Any] = {}
    for key, part in value.items():
        if key in DROPPED or (foreign and key in {"parameters", "data"}):
            continue
        if key == "env":
            found[key] = [_only(each, ("name", "valueFrom")) for each in objects(value, key)]
        elif key == "annotations":
            found[key] = {name: text for name, text in mapping(value, key).items() if _stays(name)}
        else:
            found[key] = _any(part)
    return found


def _any(value: Any) -> Any:
    if isinstance(value, dict):
        return _walked(value)
    return [_any(each) for each in value] if isinstance(value, list) else value


def _stays(annotation: str) -> bool:
    domain = annotation.partition("/")[0]
    return annotation in ANNOTATIONS or domain == contract.GROUP or domain.endswith(f".{contract.GROUP}")


def _only(value: Object, keys: Iterable[str]) -> dict[str, Any]:
    return {key: value[key] for key in keys if key in value}


def _each(value: Object, keys: Iterable[str], read: Callable[[Object], Mapping[str, Any]]) -> dict[str, Any]:
    return {key: [read(each) for each in objects(value, key)] for key in keys if key in value}
