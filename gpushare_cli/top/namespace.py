"""What ``gpu-share top -n`` shows: use, peak, quota and kills of the sharing pods of a namespace.

Read with the rights of a tenant (the ClusterRole ``edit``): pods, claims and Events, and the status file of each pod
through its sidecar, as ``explain`` reads it. A user who may write Events there can forge kills.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from gpushare.contract import ENFORCER_REPORTER
from gpushare.kube_client import CORE_V1, GARBAGE, RESOURCE_V1, KubeClient, path
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli import node_status
from gpushare_cli.enforcer_pods import AT_ONCE
from gpushare_cli.explain.pod import usage_of
from gpushare_cli.explain.pod_record import KILLS, Usage, container_of, container_statuses
from gpushare_cli.lookups import check_namespace, optional, sharing_pods
from gpushare_cli.node_status import state_word
from gpushare_cli.prepared import prepared_of
from gpushare_cli.top.arguments import OF_NAMESPACE
from gpushare_cli.top.view import Grid, View
from gpushare_cli.words import clean, counted, some
from sidecar.pod_status import Use

SHORT: Final = 12
"""Characters of a GPU's UUID that are shown."""
ENDED: Final = "Succeeded"
PodKey = tuple[str, str]
"""UID of a pod, and a container's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUse:
    """One container on one GPU, in MiB; ``None`` is not available. Without ``gpu`` it is not known where it is."""

    container: str
    gpu: str = ""
    used_mib: int | None = None
    peak_mib: int | None = None
    quota_mib: int | None = None
    borrowed_mib: int | None = None
    kills: int | None = None
    restarts: int = 0
    state: str

    def json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {key.replace("_mib", "MiB"): value for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """The sharing containers of one pod; ``problem`` is why its use is unknown or out of date."""

    pod: str
    phase: str
    node: str
    problem: str = ""
    containers: tuple[ContainerUse, ...]

    def json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {**asdict(self), "containers": [each.json() for each in self.containers]}


def view(api: KubeClient, namespace: str) -> View:
    """Read what the sharing pods of a namespace use.

    Raises:
        ClusterError: the user may not list its pods, or the API server cannot be asked.
    """
    found, kills = pod_uses(api, namespace)
    if not found:
        check_namespace(api, namespace)
    data = {"time": node_status.now().isoformat(), "namespace": namespace, "pods": [each.json() for each in found]}
    lines = tuple(notices(namespace, found, kills))
    missing = [each.pod for each in found if each.problem]
    problem = f"the use of {counted(len(missing), 'pod')} is unknown or out of date" if missing else ""
    return View(grids=(grid(found),), notices=lines, data=data, problem=problem)


def pod_uses(api: KubeClient, namespace: str) -> tuple[list[PodUse], Mapping[PodKey, int] | None]:
    """Read the sharing pods of a namespace by name, and its kills (``None``: the user may not read Events).

    Raises:
        ClusterError: the user may not list its pods, or the API server cannot be asked.
    """
    pods = [each for each in sharing_pods(api, namespace) if mapping(each, "status").get("phase") != ENDED]
    claims = optional(lambda: api.list(path(RESOURCE_V1, "resourceclaims", namespace=namespace))[0])
    kills = optional(lambda: kills_in(api, namespace))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        usages = pool.map(partial(usage_of, api), pods)
        found = [pod_use(pod, usage, claims or (), kills) for pod, usage in zip(pods, usages, strict=True)]
    return sorted(found, key=lambda each: each.pod), kills


def kills_in(api: KubeClient, namespace: str) -> Counter[PodKey]:
    """Count the kills of each container, by the enforcer's Events that are still there.

    Raises:
        ClusterError: the user may not read Events, or the API server cannot be asked.
    """
    found: Counter[PodKey] = Counter()
    for event in api.listing(path(CORE_V1, "events", namespace=namespace), fieldSelector=KILLS):
        if event.get("reportingComponent") == ENFORCER_REPORTER and event.get("reason") == Reason.KILLED:
            found[text(mapping(event, "involvedObject"), "uid"), container_of(event)] += 1
    return found


def pod_use(pod: Object, usage: Usage, claims: Iterable[Object], kills: Mapping[PodKey, int] | None) -> PodUse:
    """Put together what is known of a pod: its containers as its status file has them, else as its claims do."""
    metadata, phase = mapping(pod, "metadata"), clean(text(mapping(pod, "status"), "phase"))
    uid = text(metadata, "uid")
    restarts = {text(each, "name"): each.get("restartCount") for each in container_statuses(pod)}

    def more(container: str) -> dict[str, Any]:
        count = restarts.get(container)
        deaths = None if kills is None else kills.get((uid, container), 0)
        return {"kills": deaths, "restarts": count if isinstance(count, int) else 0}

    containers = [_of_file(use, more(use.container)) for use in usage.uses]
    if not containers:
        found = _limits(pod, claims).items()
        containers = [ContainerUse(container=name, quota_mib=mib, state=phase, **more(name)) for name, mib in found]
    old = usage.status is not None and usage.old
    problem = usage.problem or ("the node's enforcer has stopped updating the pod status" if old else "")
    return PodUse(
        pod=clean(text(metadata, "name")), phase=phase, node=clean(text(mapping(pod, "spec"), "nodeName")),
        containers=tuple(containers), problem=clean(problem),
    )  # fmt: skip


def grid(pods: Sequence[PodUse]) -> Grid:
    """Return the table of all containers; a pod of which none is known has a row too."""
    rows = [row for pod in pods for row in _rows(pod)]
    return Grid(
        headers=OF_NAMESPACE, rows=rows, drop=("GPU", "RESTARTS", "CONTAINER"), shorten="POD", optional=("BORROWED",)
    )


def _rows(pod: PodUse) -> Iterator[tuple[object, ...]]:
    for each in pod.containers or (ContainerUse(container="", state=pod.phase),):
        yield (
            pod.pod, each.container, each.gpu[:SHORT], each.used_mib, each.peak_mib, each.quota_mib,
            each.borrowed_mib, each.kills, each.restarts, each.state,
        )  # fmt: skip


def _of_file(use: Use, more: Mapping[str, Any]) -> ContainerUse:
    return ContainerUse(
        container=use.container, gpu=use.gpu, used_mib=use.used_mib, peak_mib=use.peak_mib, quota_mib=use.quota_mib,
        borrowed_mib=use.borrowed_mib, state=state_word(use.state, use.used_mib, use.most_mib), **more,
    )  # fmt: skip


def _limits(pod: Object, claims: Iterable[Object]) -> dict[str, int]:
    """MiB that each container may hold, as its claims' status says."""
    found: dict[str, int] = {}
    uid = mapping(pod, "metadata").get("uid")
    for claim in claims:
        if any(each.get("uid") == uid for each in objects(mapping(claim, "status"), "reservedFor")):
            with suppress(*GARBAGE):
                prepared = prepared_of(claim, pod)
                found |= {clean(each.container): each.memory_mib for each in prepared.limits} if prepared else {}
    return found


def notices(namespace: str, pods: Sequence[PodUse], kills: Mapping[PodKey, int] | None) -> Iterator[str]:
    """Yield the sentences about a namespace: what is not known of which pods."""
    if not pods:
        yield f"no pod in namespace {namespace} has a share"
    problems: dict[str, list[str]] = {}
    for pod in pods:
        if pod.problem:
            problems.setdefault(pod.problem, []).append(pod.pod)
    yield from (f"{some(names)}: {problem}" for problem, names in problems.items())
    if kills is None:
        yield f"you may not read Events in namespace {namespace}, so kills are unknown; ask for the ClusterRole view"
