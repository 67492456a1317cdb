"""``gpu-share advise``: reads what workloads reserve and used at most, and prints what to ask for."""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from enforcer.audit.record import Kind
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, namespace_of, path
from gpushare.quantity import MIB
from gpushare.raw_objects import mapping, text
from gpushare.reasons import Reason
from gpushare_cli import node_status
from gpushare_cli.advise.advice import Advice, Amounts, Place, advise, measured
from gpushare_cli.api_errors import sentence
from gpushare_cli.audit import remote
from gpushare_cli.audit.filters import Record, RecordFilter, pod_of
from gpushare_cli.audit.log_reader import Reading, Selection, Source
from gpushare_cli.exit_codes import FINE, NOT_FINE
from gpushare_cli.explain.pod_events import KILLS, container_of
from gpushare_cli.lookups import sharing_pods
from gpushare_cli.placement.placing import in_gib
from gpushare_cli.prometheus import JOB, Prometheus, matcher
from gpushare_cli.terminal import show, table, warn
from gpushare_cli.top import all_nodes, namespace
from gpushare_cli.top.all_nodes import NodeAnswer
from gpushare_cli.top.namespace import PodUse

HEADERS: Final = ("NAMESPACE", "WORKLOAD", "CONTAINER", "PODS", "RESERVED", "PEAK", "ADVISED", "FREES")
PEAK: Final = "max by (namespace, pod, container) (max_over_time({}[14d]))"
METRIC: Final = "gpu_share_container_memory_peak_bytes"
"""An enforcer's own peak: a series of what is in use lacks what came and went between two scrapes."""
OF_KILLS: Final = RecordFilter(kinds=frozenset({str(Kind.OUTCOME)}), results=frozenset({str(Reason.KILLED)}))


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
        found, _ = namespace.pod_uses(api, where)
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
    logs = remote.on_all_nodes(api, where, _killed, lacks.append)
    kills = {place for _, found in logs.found for place in found}
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
