"""What is read for a bundle: each part by itself, so that one that fails takes no other with it.

No Secret and no ConfigMap is read. Helm keeps the chart's values in Secrets; the arguments of the workloads show them.
Environment values, annotations and arguments of others are taken out. What may stay is listed, wherever a tenant can
write: a field that Kubernetes adds later is not in the archive.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gpushare import contract
from gpushare.errors import GpuShareError
from gpushare.kube_client import ADMISSION_V1, APPS_V1, BATCH_V1, CORE_V1, GARBAGE, RESOURCE_V1, KubeClient, path
from gpushare.pod_claims import containers
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.version import installed
from gpushare_cli.check import cluster, command
from gpushare_cli.check.connection import connected
from gpushare_cli.check.installation import POLICIES, installation
from gpushare_cli.check.workloads import reports
from gpushare_cli.enforcer_pods import EnforcerPod, find_enforcers
from gpushare_cli.explain.pod_record import TROUBLE, container_statuses, is_ours
from gpushare_cli.lookups import SHARING, picked
from gpushare_cli.top.all_nodes import status_of
from gpushare_cli.words import clean, counted, sentence

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
        "metadata": _metadata(value),
    }


def tenant_pod(pod: Object) -> dict[str, Any]:
    """Return what may be shown of a pod that a tenant wrote."""
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    return {
        "metadata": _metadata(pod),
        "spec": {**_walked(picked(spec, POD)), **_each(spec, CONTAINERS, lambda one: _walked(picked(one, CONTAINER)))},
        "status": {**picked(status, POD_STATUS), **_each(status, STATUSES, _container_status)},
    }


def claim(item: Object) -> dict[str, Any]:
    """Return what may be shown of a claim."""
    return {"metadata": _metadata(item), **{key: _walked(mapping(item, key)) for key in ("spec", "status")}}


def node(item: Object) -> dict[str, Any]:
    """Return what may be shown of a node."""
    spec = picked(mapping(item, "spec"), ("taints", "unschedulable"))
    return {"metadata": _metadata(item), "spec": spec, "status": picked(mapping(item, "status"), NODE)}


def namespace(item: Object) -> dict[str, Any]:
    """Return what may be shown of a namespace: its labels, and our annotations."""
    return {"metadata": _metadata(item)}


def event(item: Object) -> dict[str, Any]:
    """Return what may be shown of an Event."""
    return {"metadata": picked(mapping(item, "metadata"), ("name", "namespace")), **picked(item, EVENT)}


def _metadata(item: Object) -> dict[str, Any]:
    return _walked(picked(mapping(item, "metadata"), METADATA))


def _container_status(status: Object) -> dict[str, Any]:
    found = picked(status, STATUS)
    for key in (each for each in ("state", "lastState") if each in status):
        state = mapping(status, key)
        ended = {"terminated": picked(mapping(state, "terminated"), ENDED)} if "terminated" in state else {}
        found[key] = {**picked(state, ("running", "waiting")), **ended}
    return found


def _walked(value: Object) -> dict[str, Any]:
    """Go through an object of any shape and drop what may be a secret wherever it is."""
    foreign = "driver" in value and value["driver"] != contract.DRIVER
    found: dict[str, Any] = {}
    for key, part in value.items():
        if key in DROPPED or (foreign and key in {"parameters", "data"}):
            continue
        if key == "env":
            found[key] = [picked(each, ("name", "valueFrom")) for each in objects(value, key)]
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


def _each(value: Object, keys: Iterable[str], read: Callable[[Object], Mapping[str, Any]]) -> dict[str, Any]:
    return {key: [read(each) for each in objects(value, key)] for key in keys if key in value}


OURS: Final = "app.kubernetes.io/part-of=gpu-share"
NAME: Final = "gpu-share"
"""How the names of the release's objects begin."""
ADMISSION: Final = (*POLICIES, "mutatingwebhookconfigurations")
LINES: Final = 2000
"""Lines of each container's log."""
MAX_LOG: Final = 4 * 1024 * 1024
MAX_ERROR: Final = 500
MAX_OBJECTS: Final = 50_000
"""Objects of one list; those of a large cluster's Events are hardly more."""
OUT_OF_TIME: Final = "not read: the time for the bundle (--timeout) had passed"
WHY_PENDING: Final = TROUBLE | {"FailedScheduling", "FailedResourceClaimCreation"}
MAX_PART: Final = 16 * 1024 * 1024
"""Bytes of one part before compression."""
Show = Callable[[Object], dict[str, Any]]
"""What may be shown of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of the archive; ``error`` is why it is missing or not whole."""

    name: str
    data: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the parts come from.

    ``namespace`` is the release's, ``connection`` the kubeconfig and its context. After the monotonic time ``ends`` no
    part is begun, and no list goes on.
    """

    api: KubeClient
    namespace: str
    connection: tuple[str | None, str | None]
    ends: float

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.ends

    def items(self, base: str, kind: str, namespace: str = "", **query: str) -> Iterator[Object]:
        """Yield the objects of a list.

        Raises:
            GpuShareError: it may not be read, is too long, or the time is over.
        """
        for number, item in enumerate(self.api.listing(path(base, kind, namespace=namespace), **query)):
            if self.late or number >= MAX_OBJECTS:
                raise GpuShareError(OUT_OF_TIME if self.late else f"cut after {MAX_OBJECTS} objects")
            yield item


Task = tuple[str, Callable[[], Part]]
"""One part to be read: its file, and what reads it; that may raise ``GpuShareError``."""


def read(source: Source, task: Task) -> Part:
    """Read a part; one that fails, or whose time is over, says so."""
    name, work = task
    try:
        return Part(name=name, error=OUT_OF_TIME) if source.late else work()
    except GpuShareError as error:
        return Part(name=name, error=_sentence_of(error))
    except GARBAGE as error:  # an object of another shape costs its own part; the error may quote what it holds
        shape = f"the API server returned an object of an unexpected shape: {type(error).__name__}"
        return Part(name=name, error=shape)


def _sentence_of(error: GpuShareError) -> str:
    return clean(sentence(error)[:MAX_ERROR])


def tasks(source: Source) -> list[Task]:
    """Return all parts. Where the pods of the release cannot be listed, a part says so."""
    documents = {"versions.json": _versions, "check-result.json": _check}
    found: list[Task] = [(name, partial(_document, name, make, source)) for name, make in documents.items()]
    found += [(name, partial(_listed, name, listed, show)) for name, listed, show in _lists(source)]
    for name, more in (("nodes", _nodes), ("logs", _logs)):
        try:
            found += more(source)
        except GpuShareError as error:
            found.append((name, partial(Part, name=name, error=_sentence_of(error))))
    return found


def _document(name: str, make: Callable[[Source], Any], source: Source) -> Part:
    return Part(name=name, data=json.dumps(make(source), indent=1).encode())


def _listed(name: str, listed: Callable[[], Iterator[Object]], show: Show) -> Part:
    """Read a list as far as it can be read, and as far as it fits."""
    rows, size, error = list[str](), 0, ""
    try:
        for item in listed():
            row = json.dumps(show(item))
            size += len(row) + 2
            if size > MAX_PART:
                error = f"cut after {counted(len(rows), 'object')}: a part has at most {MAX_PART} bytes"
                break
            rows.append(row)
    except GpuShareError as problem:
        error = _sentence_of(problem)
    if error and not rows:
        return Part(name=name, error=error)
    return Part(name=name, data=("[" + ",\n".join(rows) + "]\n").encode(), error=error)


def _versions(source: Source) -> dict[str, Any]:
    return {
        "commandLine": installed(),
        "kubernetes": source.api.get("/version"),
        "release": installation(source.api).version,
        "enforcers": {node: report and report.version for node, report in reports(source.api).items()},
    }


def _check(source: Source) -> list[dict[str, Any]]:
    questions = connected(*source.connection, required=True, questions=partial(cluster.questions, None))
    return [answer.json() for answer in command.ask(questions)]


def _lists(source: Source) -> Iterator[tuple[str, Callable[[], Iterator[Object]], Show]]:
    """Yield file, list, and what may be shown of each of its objects."""
    items, home = source.items, source.namespace
    opted_in = f"{contract.NAMESPACE_LABEL}=true"
    yield "resourceslices.json", partial(slices, source), scrubbed
    yield "resourceclaims.json", partial(claims, source), claim
    yield "sharing-pods.json", partial(items, CORE_V1, "pods", labelSelector=SHARING), tenant_pod
    yield "events.json", partial(events, source), event
    yield "nodes.json", partial(items, CORE_V1, "nodes", labelSelector=f"{contract.NODE_LABEL}=true"), node
    yield "namespaces.json", partial(items, CORE_V1, "namespaces", labelSelector=opted_in), namespace
    for base, kind in ((CORE_V1, "pods"), (APPS_V1, "deployments"), (APPS_V1, "daemonsets"), (BATCH_V1, "jobs")):
        yield f"release/{kind}.json", partial(items, base, kind, home, labelSelector=OURS), scrubbed
    for base, kind in ((RESOURCE_V1, "deviceclasses"), *((ADMISSION_V1, kind) for kind in ADMISSION)):
        yield f"release/{kind}.json", partial(named, source, base, kind), scrubbed


def named(source: Source, base: str, kind: str) -> Iterator[Object]:
    """Yield the objects of the release among those without a namespace: their names tell, for not all have labels."""
    yield from (each for each in source.items(base, kind) if text(mapping(each, "metadata"), "name").startswith(NAME))


def slices(source: Source) -> Iterator[Object]:
    """Yield the ResourceSlices of gpu-share."""
    yield from source.items(RESOURCE_V1, "resourceslices", fieldSelector=f"spec.driver={contract.DRIVER}")


def claims(source: Source) -> Iterator[Object]:
    """Yield the claims that ask for a GPU of ours, or have one."""
    yield from filter(is_ours, source.items(RESOURCE_V1, "resourceclaims"))


def events(source: Source) -> Iterator[Object]:
    """Yield the Events of the release's namespace, those of the enforcers, and those that are about shares.

    What a tenant's own program writes, such as the output of a probe, is in Events too, and is left out.
    """
    for event in source.items(CORE_V1, "events"):
        about = mapping(event, "involvedObject")
        home = text(about, "namespace") == source.namespace
        ours = event.get("reportingComponent") == contract.ENFORCER_REPORTER
        share = text(about, "kind") == "ResourceClaim" or text(event, "reason") in WHY_PENDING
        if home or share or ours or contract.GROUP in text(event, "message"):
            yield event


def _nodes(source: Source) -> list[Task]:
    """Return the status of each enforcer."""
    files = {f"nodes/{pod.node}/status.json": pod for pod in find_enforcers(source.api, source.namespace)}
    return [(name, partial(_status, source, name, pod)) for name, pod in files.items()]


def _status(source: Source, name: str, pod: EnforcerPod) -> Part:
    answer = status_of(source.api, pod)
    data = b"" if answer.status is None else json.dumps(answer.status.raw, indent=1).encode()
    return Part(name=name, data=data, error=answer.problem)


def _logs(source: Source) -> list[Task]:
    """Return the logs of all containers of the release; of one that restarted, the one before too."""
    found = list[Task]()
    for pod in source.api.list(path(CORE_V1, "pods", namespace=source.namespace), labelSelector=OURS)[0]:
        restarted = {text(each, "name") for each in container_statuses(pod) if each.get("restartCount")}
        name = text(mapping(pod, "metadata"), "name")
        for container in (text(each, "name") for each in containers(pod)):
            for previous in (False, True) if container in restarted else (False,):
                file = f"logs/{name}/{container}{'.previous' if previous else ''}.log"
                found.append((file, partial(_log, source, file, (name, container), previous=previous)))
    return found


def _log(source: Source, file: str, where: tuple[str, str], *, previous: bool) -> Part:
    pod, container = where
    data = source.api.log(pod, source.namespace, container, lines=LINES, limit=MAX_LOG, previous=previous)
    return Part(name=file, data=data, error=f"cut at {MAX_LOG} bytes" if len(data) >= MAX_LOG else "")
