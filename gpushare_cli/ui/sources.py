"""Where pages get what they show: the objects of the cluster, what enforcers and sidecars answer, the audit logs.

Each is read by the code of the verb that shows it on the command line: ``top``, ``explain``, ``check``, ``audit``.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final, TypeVar

from enforcer.audit.record import read
from gpushare.contract import DRIVER, ENFORCER
from gpushare.errors import GpuShareError, RecordError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, Object, path
from gpushare.quantity import MIB
from gpushare.raw_objects import mapping, text
from gpushare_cli.advise import command as advising
from gpushare_cli.advise.arguments import LEAST_AGE
from gpushare_cli.advise.command import Advice, Place, advise, measured
from gpushare_cli.audit import log_reader, remote
from gpushare_cli.audit.log_reader import Outcome
from gpushare_cli.check import cluster as questions
from gpushare_cli.check import connection, startable, workloads
from gpushare_cli.check.connection import Ask, ReadOnce
from gpushare_cli.check.result import CheckResult
from gpushare_cli.enforcer_pods import EnforcerPod, asked, find_enforcers
from gpushare_cli.explain import command as explaining
from gpushare_cli.explain.cluster_state import PodExplanation, explain
from gpushare_cli.explain.pod import POD, Reader, named
from gpushare_cli.lookups import sharing_pods
from gpushare_cli.placement.placing import Cluster
from gpushare_cli.prometheus import JOB, Prometheus, matcher
from gpushare_cli.top import namespace as tenants
from gpushare_cli.top.all_nodes import NO_ENFORCER, NodeAnswer, status_of
from gpushare_cli.ui.cache import INTEREST, WINDOW, Cached, History, Polled
from gpushare_cli.ui.fleet import NO_OPTIONS, Fit, Fleet, fit, fleet
from gpushare_cli.words import sentence

T = TypeVar("T")
USE_SECONDS: Final = 3.0
"""Between two rounds of questions to enforcers or sidecars, while a page asks for them."""
OLD_SECONDS: Final = 60.0
"""After which an answer of an enforcer is not shown any more."""
FIND_SECONDS: Final = 30.0
"""Between two searches for enforcers."""
CHECK_SECONDS: Final = 30.0
AUDIT_SECONDS: Final = 0.5
"""Between two looks whether a node's log has grown."""
PAST_SECONDS: Final = 60.0
"""Between two questions to Prometheus of the same, while a page asks."""
CURVE_STEP: Final = 15.0
CURVES: Final[Mapping[str, tuple[str, ...]]] = {
    "gpu_share_gpu_memory_used_bytes": ("gpu",),
    "gpu_share_container_memory_used_bytes": ("namespace", "pod", "container", "gpu"),
}
"""Series of a GPU, and the labels that name the curve of each."""
WAITING: Final = 20
"""So many pods of a namespace that wait for a node are explained."""
RECORDS: Final = 1000
"""So many records of a node's log, the last ones, are kept for pages; all of them are verified."""
CHECKS: Final[tuple[tuple[str, Ask], ...]] = (
    ("webhook replicas", workloads.webhooks),
    ("enforcers", workloads.enforcers),
    ("enforcer reports", workloads.reported),
    ("nodes that share their GPUs", workloads.unsliced),
    ("GPUs published", questions.published),
    ("GPUs left out", questions.left_out),
    ("nodes for a new share", startable.on_nodes),
)
"""The questions of ``check`` whose answers stand above the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """A node's audit log: whether it holds, and its last records. ``problem`` is why it could not be read."""

    node: str
    seen: tuple[str, ...] = ()
    outcome: Outcome | None = None
    records: tuple[Mapping[str, Any], ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A namespace: what its pods use, and why those wait that have no node."""

    pods: Sequence[tenants.PodUse]
    waiting: Sequence[PodExplanation]


class Sources:
    """All that pages read, with the reader's rights; what is read is kept and read again while pages ask for it.

    Args:
        api: the cluster; its changes hear of what is read besides.
        enforcers_in: the namespace of the enforcers; ``None``: it is searched.
        prometheus: has what was before the pages were opened.
    """

    def __init__(
        self,
        api: Cached,
        enforcers_in: str | None = None,
        prometheus: Prometheus | None = None,
    ) -> None:
        self.api, self.changes, self.history = api, api.changes, History()
        self.prometheus = prometheus
        self._enforcers_in, self._found = enforcers_in, (0.0, list[EnforcerPod]())
        self._logs = dict[str, NodeLog]()
        self._answers = dict[str, tuple[float, NodeAnswer]]()
        """By node, with the time of the answer."""
        self._uses = Polled(self._ask_enforcers, USE_SECONDS, api.changes)
        self._checks = Polled(self._ask_checks, CHECK_SECONDS, api.changes)
        self._audit = Polled(self._read_logs, AUDIT_SECONDS, api.changes)
        self._wanted = dict[str, float]()
        """When a page showed a node last."""
        self._made: tuple[int, Fleet, list[str]] | None = None
        self._asked, self._lock = dict[tuple[Any, ...], Polled[Any]](), Lock()

    def objects(self, kind: str, namespace: str = "", **query: str) -> list[Object]:
        """List objects of a followed kind.

        Raises:
            ClusterError: the reader may not list them, or the API server cannot be asked.
        """
        base = CORE_V1 if kind in {"nodes", "pods", "events", "resourcequotas"} else RESOURCE_V1
        return self.api.list(path(base, kind, namespace=namespace), **query)[0]

    def fleet(self, wait: float, nodes: Collection[str] | None = None) -> tuple[Fleet, list[str]]:
        """Return the fleet, and sentences about what could not be read of it.

        Args:
            wait: seconds for the first answers of enforcers.
            nodes: those whose enforcers are asked, from now on for a while; ``None``: all.

        Raises:
            ClusterError: the reader may not list ResourceSlices.
        """
        slices = self.objects("resourceslices", fieldSelector=f"spec.driver={DRIVER}")
        names = {text(mapping(each, "spec"), "nodeName") for each in slices} if nodes is None else nodes
        self._wanted |= dict.fromkeys(names, time.monotonic())
        state, number = self._uses.get(wait) if names else None, self.changes.number
        if self._made is not None and self._made[0] == number:
            return self._made[1:]
        claims, hidden = attempt(lambda: self.objects("resourceclaims"))
        known, unknown = attempt(lambda: self.objects("nodes"))
        silent = f"use is not known: {sentence(state)}" if isinstance(state, GpuShareError) else ""
        found = fleet(slices, claims or (), known or (), self._current())
        self._made = number, found, [*filter(None, (hidden, unknown, silent, *self.api.problems()))]
        return self._made[1:]

    def fit(self, form: Mapping[str, str], namespace: str) -> tuple[Fit, list[str]]:
        """Say where a share of the form's size could start now, and what of the cluster could not be read."""
        reads = ("nodes", "resourceslices", "resourceclaims", "resourcequotas")
        found = {kind: attempt(lambda kind=kind: self._for_placing(kind, namespace)) for kind in reads}  # type: ignore[misc] # bound now
        nodes, slices, claims, quotas = (found[kind][0] for kind in reads)
        cluster = Cluster(nodes=nodes, slices=slices, claims=claims, quotas=quotas)
        return fit(form, namespace, cluster), [problem for _, problem in found.values()]

    def checks(self, wait: float) -> list[tuple[str, CheckResult]]:
        """Return what ``check`` finds wrong, the question with each; none before it was asked."""
        found = self._checks.get(wait)
        return [each for each in found if not each[1].fine] if isinstance(found, list) else []

    def tenant(self, namespace: str, wait: float) -> Tenant | GpuShareError | None:
        """Return what the pods of a namespace use, and why some wait; ``None`` before that was read."""
        return self._polled(wait, self._ask_namespace, namespace)

    def explained(self, namespace: str, name: str, wait: float) -> PodExplanation | GpuShareError | None:
        """Explain a pod as ``gpu-share explain`` does; ``None`` before that was read."""
        return self._polled(wait, self._explain, namespace, name)

    def advice(self, namespace: str, wait: float) -> tuple[list[Advice], list[str]]:
        """Advise all workloads; where the reader may not run commands in enforcers, those of the namespace."""
        attempt(lambda: self.fleet(0))
        state, problems = self._uses.get(wait), list[str]()
        if isinstance(state, GpuShareError):
            problems.append(f"only namespace {namespace}: {sentence(state)}")
            tenant = self.tenant(namespace, wait)
            if isinstance(tenant, GpuShareError):
                raise tenant
            uses = advising.of_tenants(namespace, tenant.pods if tenant else ())
        else:
            namespace, uses = "", advising.of_enforcers(self._current())
        logs = self.logs(wait) if not namespace else []
        problems += _unknown_kills(logs)
        records = (each for log in logs for each in log.records) if isinstance(logs, list) else ()
        kills = {*advising.of_records(filter(advising.OF_KILLS.matches, records))}
        kills |= advising.of_events(self.api, namespace, problems.append)
        pods = sharing_pods(self.api, namespace)
        past = self._past(wait, problems, self._ask_peaks, namespace) or {}
        return advise(measured(pods, uses, kills, time.time(), past), LEAST_AGE), problems

    def begin_curves(self, gpu: str, wait: float) -> list[str]:
        """Have the curves of a GPU begin before its page was opened; return why they do not."""
        problems = list[str]()
        self._past(wait, problems, self._ask_curves, gpu)
        return problems

    def logs(self, wait: float) -> list[NodeLog] | GpuShareError | None:
        """Return the audit logs by node; ``None`` before they were read."""
        return self._audit.get(wait)

    def _ask_checks(self) -> list[tuple[str, CheckResult]]:
        once = ReadOnce(self.api)
        return [(what, connection.asked(once, ask)) for what, ask in CHECKS]

    def known_logs(self) -> list[NodeLog]:
        """Return the audit logs that were read for other pages; reading them takes a node's whole log."""
        return [log for _, log in sorted(self._logs.items())]

    def _enforcers(self) -> list[EnforcerPod]:
        when, found = self._found
        if not found or time.monotonic() - when > FIND_SECONDS:
            found = find_enforcers(self.api, self._enforcers_in)
            self._found = time.monotonic(), found
        return found

    def _ask_enforcers(self) -> int:
        """Ask the enforcers that pages show for their status; each answer is there at once for the next page."""
        pods, since = self._enforcers(), time.monotonic() - INTEREST
        asked([each for each in pods if self._wanted.get(each.node, 0.0) > since], self._ask_enforcer)
        here = {each.node for each in pods}
        self._answers = {node: each for node, each in self._answers.items() if node in here}
        for node in self._labelled() - here:
            self._answers[node] = time.monotonic(), NodeAnswer(node=node, problem=NO_ENFORCER)
        return len(pods)

    def _labelled(self) -> set[str]:
        """Return the nodes that shall share their GPUs, as far as that may be read."""
        return set(attempt(lambda: workloads.labelled(self.api))[0] or ())

    def _ask_enforcer(self, pod: EnforcerPod) -> None:
        answer, at = status_of(self.api, pod), time.monotonic()
        if answer.status is not None:
            answer = replace(answer, status=replace(answer.status, raw={}))
            for gpu in answer.status.gpus if answer.status and not answer.problem else ():
                self.history.add(gpu.uuid, at, gpu.used_mib)
                for use in gpu.uses:
                    self.history.add((use.namespace, use.pod, use.container, use.gpu), at, use.used_mib)
        self._answers[pod.node] = time.monotonic(), answer
        self.changes.note()

    def _current(self) -> list[NodeAnswer]:
        """Return the answers that are not old, by node."""
        since = time.monotonic() - OLD_SECONDS
        return [answer for _, (when, answer) in sorted(self._answers.items()) if when > since]

    def _for_placing(self, kind: str, namespace: str) -> list[Object]:
        ours = {"fieldSelector": f"spec.driver={DRIVER}"} if kind == "resourceslices" else {}
        return self.objects(kind, namespace if kind == "resourcequotas" else "", **ours)

    def _polled(
        self, wait: float, read: Callable[..., T], *words: object, seconds: float = USE_SECONDS
    ) -> T | GpuShareError | None:
        with self._lock:
            if (read, *words) not in self._asked:
                self._asked[read, *words] = Polled(lambda: read(*words), seconds, self.changes)
            polled: Polled[T] = self._asked[read, *words]
        return polled.get(wait)

    def _past(self, wait: float, problems: list[str], read: Callable[..., T], word: str) -> T | None:
        """Read something of Prometheus, where it is given; say in ``problems`` why that is not known."""
        if self.prometheus is None:
            return None
        found = self._polled(wait, read, self.prometheus, word, seconds=PAST_SECONDS)
        problems += self.prometheus.warnings
        if found is None or isinstance(found, GpuShareError):
            problems.append(f"only what this page has seen: {found.message if found else 'Prometheus is being asked'}")
            return None
        return found

    def _ask_peaks(self, server: Prometheus, namespace: str) -> dict[Place, int]:
        return advising.peaks(server, namespace, time.time())

    def _ask_curves(self, server: Prometheus, gpu: str) -> int:
        """Read the window of a GPU's curves; returns how many there are."""
        begun = 0
        for metric, labels in CURVES.items():
            selector, end = server.selector(metric, JOB, matcher("gpu", gpu)), time.time()
            for each in server.between(selector, end - WINDOW, end, CURVE_STEP):
                key = tuple(each.labels.get(label, "") for label in labels)
                shift, begun = time.monotonic() - time.time(), begun + 1
                points = [(when + shift, round(value / MIB)) for when, value in each.points]
                self.history.begin(key if len(key) > 1 else gpu, points)
        return begun

    def _ask_namespace(self, namespace: str) -> Tenant:
        found, _ = tenants.pod_uses(self.api, namespace)
        at = time.monotonic()
        for pod in found:
            for use in pod.containers if not pod.problem else ():
                self.history.add((namespace, pod.pod, use.container, use.gpu), at, use.used_mib)
        reader = Reader(self.api, namespace)
        pods = sharing_pods(self.api, namespace)
        names = [text(mapping(each, "metadata"), "name") for each in pods if not mapping(each, "spec").get("nodeName")]
        waiting = [attempt(lambda name=name: named(self.api, POD, name, namespace))[0] for name in names[:WAITING]]  # type: ignore[misc] # bound now
        return Tenant(pods=found, waiting=[explain(reader.record(each)) for each in waiting if each])

    def _explain(self, namespace: str, name: str) -> PodExplanation:
        found = explaining.of_pod(self.api, namespace, name, NO_OPTIONS)
        at = time.monotonic()
        for use in found.usage.uses:
            self.history.add((namespace, name, use.container, use.gpu), at, use.used_mib)
        return found

    def _read_logs(self) -> list[NodeLog]:
        """Read the logs that have grown, as the anchors show, and those of enforcers that report something else."""
        known, reports = defaultdict[str, list[remote.Anchor]](list), defaultdict[str, str](str)
        for anchor in remote.in_cluster(self.api, lambda _: None):
            known[anchor.node].append(anchor)
        for each in self.objects("resourceslices", fieldSelector=f"spec.driver={DRIVER}"):
            report = text(mapping(mapping(each, "metadata"), "annotations"), ENFORCER)  # the node's enforcer writes it
            reports[text(mapping(each, "spec"), "nodeName")] += report

        def one(pod: EnforcerPod) -> None:
            mine = known[pod.node]
            seen = (*sorted(str(each.head) for each in mine), reports[pod.node])
            before = self._logs.get(pod.node)
            if before is None or before.problem or before.seen != seen:
                found = read_log(self.api, pod, mine, seen)
                self._logs[pod.node] = replace(found, records=before.records) if before and found.problem else found
                self.changes.note()

        pods = self._enforcers()
        asked(pods, one)
        here = {each.node for each in pods}
        silent = self._labelled() - here
        for node in silent:
            self._logs[node] = replace(self._logs.get(node, NodeLog(node=node)), outcome=None, problem=NO_ENFORCER)
        return [self._logs[node] for node in sorted(here | silent) if node in self._logs]


def read_log(api: KubeClient, pod: EnforcerPod, known: Sequence[remote.Anchor], seen: tuple[str, ...] = ()) -> NodeLog:
    """Read and verify a node's log in one pass, as ``audit verify -A`` does; its last records are kept."""
    last = deque[bytes](maxlen=RECORDS)

    def lines() -> Iterator[bytes]:
        for line in source.parts[0].lines():
            last.append(line)
            yield line

    source = remote.source(api, pod)
    try:
        part = replace(source.parts[0], lines=lines)
        outcome = remote.compared(log_reader.Source(pod.node, (part,)), known)
    except GpuShareError as error:
        return NodeLog(node=pod.node, seen=seen, problem=f"cannot read the audit log: {sentence(error)}")
    return NodeLog(node=pod.node, seen=seen, outcome=outcome, records=tuple(_records(last)))


def _records(lines: Sequence[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in reversed(lines):
        try:
            yield read(line)
        except RecordError:  # the log's outcome says so
            continue


def _unknown_kills(logs: list[NodeLog] | GpuShareError | None) -> list[str]:
    """Say which kills advice does not count: those of audit logs that were not read."""
    if logs is None:
        return ["the audit logs are still being read; until then only kills of the last hour count"]
    if isinstance(logs, GpuShareError):
        return [f"kills before the last hour are unknown: {sentence(logs)}"]
    return [
        f"kills on node {each.node} before the last hour are unknown: {each.problem}" for each in logs if each.problem
    ]


def attempt(work: Callable[[], T]) -> tuple[T | None, str]:
    """Do something that the reader may have no right to do; return what came of it, or the sentence about that."""
    try:
        return work(), ""
    except GpuShareError as error:
        return None, sentence(error)
