"""``gpu-share advise``: reads what workloads reserve and used at most, and prints what to ask for.

The amount is that which ``explain`` names after a kill: the peak, the tolerance of a quota, rounded up.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from enforcer.audit.record import Kind
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, namespace_of, path
from gpushare.pod_claims import containers
from gpushare.quantity import DEFAULT_MIN_MIB, MIB, format_mib
from gpushare.raw_objects import Object, mapping, moment, text
from gpushare.reasons import Reason
from gpushare_cli import node_status
from gpushare_cli.audit import remote
from gpushare_cli.audit.filters import Record, RecordFilter, pod_of
from gpushare_cli.audit.log_reader import Reading, Selection, Source
from gpushare_cli.explain.pod_record import KILLS, container_of, container_statuses
from gpushare_cli.explain.sizes import annotation_of, sufficient_mib, workload_of
from gpushare_cli.lookups import sharing_pods
from gpushare_cli.placement.placing import in_gib
from gpushare_cli.prometheus import JOB, Prometheus, matcher
from gpushare_cli.terminal import FINE, NOT_FINE, show, table, warn
from gpushare_cli.top import all_nodes
from gpushare_cli.top.all_nodes import NodeAnswer
from gpushare_cli.top.namespace import PodUse, pod_uses
from gpushare_cli.words import sentence

Place = tuple[str, str, str]
"""Namespace, pod and container."""
SIGKILLED: Final = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """MiB that a container of a pod reserved, and the most that it used (``None``: not known), as its enforcer says.

    ``refused``: it was refused memory, or was killed for it, or an earlier pod with a larger share used more.
    """

    reserved_mib: int
    peak_mib: int | None
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one container of one pod; ``seconds`` is how long the pod has run."""

    namespace: str
    workload: str
    container: str
    annotation: str
    amounts: Amounts
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What one container of a workload should ask for; ``advised_mib`` is what it has where there is no advice."""

    namespace: str
    workload: str
    container: str
    pods: int
    reserved_mib: int
    peak_mib: int | None
    advised_mib: int
    annotation: str
    why: str

    @property
    def frees_mib(self) -> int:
        """MiB that all its pods together would reserve less; negative where they need more."""
        return (self.reserved_mib - self.advised_mib) * self.pods

    @property
    def write(self) -> str:
        """The annotation to write; empty where nothing is to change."""
        return "" if self.advised_mib == self.reserved_mib else f"{self.annotation}: {format_mib(self.advised_mib)}"

    def json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "namespace": self.namespace, "workload": self.workload, "container": self.container, "pods": self.pods,
            "reservedMiB": self.reserved_mib, "peakMiB": self.peak_mib, "advisedMiB": self.advised_mib,
            "freesMiB": self.frees_mib, "annotation": self.write, "why": self.why,
        }  # fmt: skip


def measured(
    pods: Iterable[Object],
    uses: Mapping[Place, Amounts],
    kills: Collection[Place],
    now: float,
    past: Mapping[Place, int] | None = None,
) -> Iterator[Measured]:
    """Put together what is known of each container that has a share.

    Args:
        pods: with shares, as the API server has them.
        uses: of their containers, as enforcers or sidecars answer.
        kills: containers that were killed, also those of pods that are gone.
        now: seconds since 1970.
        past: MiB that containers used at most before, also those of pods that are gone.
    """
    before = defaultdict[tuple[str, str], list[tuple[str, int]]](list)
    for (where, name, container), mib in (past or {}).items():
        before[where, container].append((name, mib))
    for pod in pods:
        metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
        namespace, name, kind = text(metadata, "namespace"), text(metadata, "name"), workload_of(metadata)
        began = moment(mapping(pod, "status").get("startTime"))
        shot = {text(each, "name") for each in container_statuses(pod) if _was_killed(each)}
        for container in (text(each, "name") for each in containers(pod)):
            if (found := uses.get((namespace, name, container))) is not None:
                of_it = container in shot or _is_among((namespace, name, container), kind[1], kills)
                mine = [mib for pod, mib in before[namespace, container] if _is_of(pod, name, kind[1])]
                amounts = _with_past(replace(found, refused=found.refused or of_it), mine)
                yield Measured(
                    namespace=namespace, workload=" ".join(filter(None, kind)) or f"Pod {name}", container=container,
                    annotation=annotation_of(metadata, spec, container), amounts=amounts,
                    seconds=0.0 if began is None else now - began.timestamp(),
                )  # fmt: skip


def advise(found: Iterable[Measured], least_seconds: float) -> list[Advice]:
    """Advise each container of each workload, what frees most first."""
    groups = defaultdict[tuple[str, str, str], list[Measured]](list)
    for each in found:
        groups[each.namespace, each.workload, each.container].append(each)
    advised = [_advice(mine, least_seconds) for mine in groups.values()]
    return sorted(advised, key=lambda each: (-each.frees_mib, each.namespace, each.workload, each.container))


def _advice(mine: Sequence[Measured], least_seconds: float) -> Advice:
    first, reserved = mine[0], max(each.amounts.reserved_mib for each in mine)
    peaks = [each.amounts.peak_mib for each in mine]
    known = [each for each in peaks if each is not None]
    advised, why = reserved, "its peak is not known of each pod"
    if known and len(known) == len(peaks):
        refused = any(each.amounts.refused or max(known) > each.amounts.reserved_mib for each in mine)
        advised, why = _amount(max(known), reserved, refused=refused, ran=max(each.seconds for each in mine),
                               least=least_seconds)  # fmt: skip
    return Advice(
        namespace=first.namespace, workload=first.workload, container=first.container, pods=len(mine),
        reserved_mib=reserved, peak_mib=max(known, default=None), advised_mib=advised, annotation=first.annotation,
        why=why,
    )  # fmt: skip


def _amount(peak: int, reserved: int, *, refused: bool, ran: float, least: float) -> tuple[int, str]:
    """Return what to ask for, and why."""
    enough = max(sufficient_mib(peak), DEFAULT_MIN_MIB)
    margin = f"its peak of {in_gib(peak) if peak else '0'} and a margin of {in_gib(enough - peak)}"
    if enough > reserved:
        return enough, f"{margin}; it reserves less than that"
    if enough == reserved:
        return reserved, f"fits: {margin}"
    if refused:
        return reserved, "it was killed for its memory, refused some, or used more before, so less is never advised"
    if ran < least:
        return reserved, f"its pods have run for {_hours(ran)}, and a peak of {_hours(least)} is needed to advise less"
    return enough, margin


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


def _was_killed(status: Object) -> bool:
    ends = (mapping(mapping(status, key), "terminated") for key in ("state", "lastState"))
    return any(each.get("exitCode") == SIGKILLED for each in ends)


def _is_among(place: Place, workload: str, kills: Collection[Place]) -> bool:
    """Tell whether a container was killed, in this pod or in an earlier one of its workload."""
    namespace, pod, container = place
    return any(
        (killed[0], killed[2]) == (namespace, container) and _is_of(killed[1], pod, workload) for killed in kills
    )


def _is_of(other: str, pod: str, workload: str) -> bool:
    return other == pod or (bool(workload) and other.startswith(f"{workload}-"))


def _with_past(now: Amounts, past: Collection[int]) -> Amounts:
    """Count peaks of earlier pods. One that only a larger share could hold does not say how much is enough."""
    fitting = [each for each in past if each <= now.reserved_mib]
    peak = max([*fitting, *([] if now.peak_mib is None else [now.peak_mib])], default=None)
    return replace(now, peak_mib=peak, refused=now.refused or len(fitting) < len(past))


HEADERS: Final = ("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "RESERVED", "PEAK", "ADVISED", "FREES")
PEAK: Final = "max by (namespace, pod, container) (max_over_time({}[14d]))"
METRIC: Final = "gpu_share_container_memory_peak_bytes"
"""An enforcer's own peak: a series of what is in use lacks what came and went between two scrapes."""
OF_KILLS: Final = RecordFilter(kind=Kind.OUTCOME, result=Reason.KILLED)


def run(args: argparse.Namespace) -> int:
    """Print the advice. Returns 1 when something could not be read, so that workloads may be missing."""
    server = Prometheus.of(args)
    api = KubeClient.connect(args.kubeconfig, args.context)
    lacks = list[str]()
    if args.all_namespaces:
        uses, kills = _of_all(api, args.enforcer_namespace, lacks)
        where = ""
    else:
        where = args.namespace or namespace_of(args.kubeconfig, args.context)
        found, _ = pod_uses(api, where)
        uses, kills = of_tenants(where, found), of_events(api, where, lacks.append)
        lacks += [f"{each.pod}: {each.problem}" for each in found if each.problem]
    pods = sharing_pods(api, where)
    now = node_status.now().timestamp()
    past = peaks(server, where, now) if server else {}
    lacks += server.warnings if server else ()
    advice = advise(measured(pods, uses, kills, now, past), args.min_age)
    show(args.output, [each.json() for each in advice], _lines(advice))
    for each in lacks:
        warn(each)
    return NOT_FINE if lacks else FINE


def _of_all(api: KubeClient, where: str | None, lacks: list[str]) -> tuple[dict[Place, Amounts], set[Place]]:
    answers = all_nodes.statuses(api, where)
    lacks += [f"{each.node}: {each.problem}" for each in answers if each.problem]
    logs, _ = remote.on_all_nodes(api, where, _killed, lacks.append)
    kills = {place for _, found in logs for place in found}
    return of_enforcers(answers), kills | of_events(api, "", lacks.append)


def _killed(source: Source) -> set[Place]:
    return set(of_records(record for _, record in Selection(Reading(source), OF_KILLS)))


def of_enforcers(answers: Collection[NodeAnswer]) -> dict[Place, Amounts]:
    """Return what enforcers measured of each container, on the GPU where that is most."""
    found = dict[Place, Amounts]()
    for use in (use for each in answers if each.status for gpu in each.status.gpus for use in gpu.uses):
        if reserved := use.quota_mib if use.reserved_mib is None else use.reserved_mib:
            _add(found, (use.namespace, use.pod, use.container), reserved, use.peak_mib, refused=bool(use.failed))
    return found


def of_tenants(name: str, pods: Collection[PodUse]) -> dict[Place, Amounts]:
    """Return what sidecars of a namespace report of each container."""
    found = dict[Place, Amounts]()
    for pod in pods:
        for use in pod.containers:
            if use.quota_mib:
                _add(found, (name, pod.pod, use.container), use.quota_mib, use.peak_mib, refused=bool(use.kills))
    return found


def _add(found: dict[Place, Amounts], place: Place, reserved: int, peak: int | None, *, refused: bool) -> None:
    before = found.get(place)
    if before is not None:
        reserved, refused = max(reserved, before.reserved_mib), refused or before.refused
        peak = None if peak is None or before.peak_mib is None else max(peak, before.peak_mib)
    found[place] = Amounts(reserved_mib=reserved, peak_mib=peak, refused=refused)


def of_events(api: KubeClient, name: str, warn: Callable[[str], None]) -> set[Place]:
    """Return the containers that were killed, by the Events that are still there; ``warn`` hears of a missing right."""
    try:
        events = api.list(path(CORE_V1, "events", namespace=name), fieldSelector=KILLS)[0]
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        warn(f"kills are unknown: {sentence(error)}")
        return set()
    found = ((mapping(each, "involvedObject"), container_of(each)) for each in events)
    return {(text(about, "namespace"), text(about, "name"), container) for about, container in found}


def of_records(records: Iterable[Record]) -> Iterator[Place]:
    """Yield the containers that records of kills are about."""
    for each in records:
        pod: Mapping[str, Any] = pod_of(each)
        yield str(pod.get("namespace")), str(pod.get("name")), str(each.get("container"))


def peaks(server: Prometheus, namespace: str, now: float) -> dict[Place, int]:
    """Return the peaks in MiB before a Unix time, of one namespace, or of all where that is empty.

    Raises:
        GpuShareError: Prometheus cannot be asked.
    """
    where = [matcher("namespace", namespace)] if namespace else []
    found = server.at(PEAK.format(server.selector(METRIC, JOB, *where)), now)
    return {_place(each.labels): round(each.points[0][1] / MIB) for each in found if each.points}


def _place(labels: Mapping[str, str]) -> Place:
    return labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", "")


def _lines(advice: Collection[Advice]) -> Iterator[str]:
    if not advice:
        yield "no workload with a share was measured"
        return
    rows = [
        (each.namespace, each.workload, each.container, each.pods, in_gib(each.reserved_mib),
         None if each.peak_mib is None else f"{each.peak_mib}Mi", in_gib(each.advised_mib),
         f"{each.frees_mib}Mi" if each.frees_mib else "-")
        for each in advice
    ]  # fmt: skip
    yield from table(HEADERS, rows)
    for each in advice:
        change = f"write {each.write}" if each.write else "keep it"
        yield f"{each.namespace}/{each.workload.partition(' ')[2]} {each.container}: {change}: {each.why}"
