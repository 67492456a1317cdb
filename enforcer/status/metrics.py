"""The enforcer's metrics.

Gauges are made of the last status when they are scraped, so that a scrape sees one moment and a container that is gone
leaves no series behind.
"""

import time
from collections import Counter as Counts
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from enforcer.audit.verification import LogVerifier
from enforcer.detection.types import Decision, KillDecision
from gpushare.quantity import MIB
from gpushare.reasons import Reason

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
RECLAIM_BUCKETS: Final = (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
_OF_CONTAINER: Final = ("namespace", "pod", "container", "gpu")
PROBLEMS: Final = (
    Reason.API_UNREACHABLE, Reason.AUDIT_BROKEN, Reason.AUDIT_RECORD_LOST, Reason.AUDIT_UNWRITABLE, Reason.BREAKER_OPEN,
    Reason.CHECKPOINT_UNREADABLE, Reason.CLAIM_IN_USE, Reason.DRIVER_NOT_REGISTERED, Reason.FILES_UNWRITABLE,
    Reason.MODE_UNKNOWN, Reason.MPS_UNREACHABLE, Reason.NOT_APPLIED, Reason.NVML_UNAVAILABLE, Reason.UNACCOUNTED_MEMORY,
    Reason.UNKILLABLE,
)  # fmt: skip
"""Reasons of problems that are 0 while there is no such problem; those of NVML are more."""
ACTIONS: Final = {
    Decision.WARNED: "warned",
    Decision.LOWERED: "lowered",
    Decision.KILL: "killed",
    Decision.RATE_LIMITED: "rate_limited",
    Decision.BREAKER_OPEN: "breaker_open",
    Decision.BACK_UNDER: "back_under",
}
"""What the counter of violations calls each decision."""
RECLAIMS: Final = {Decision.RECLAIM_NOTICE: "notice", Decision.KILL: "killed"}
"""What the counter of reclaims calls each decision about borrowed memory."""
RESULTS: Final = (
    Reason.KILLED, Reason.ALREADY_EXITED, Reason.BACK_UNDER_QUOTA, Reason.UNKILLABLE, Reason.AUDIT_UNWRITABLE,
)  # fmt: skip
OPERATIONS: Final = ("prepare", "unprepare")
LAST_KILLS: Final = 32
"""So many kills have a series each, whatever tenants do."""


class Metrics:
    """Every metric of one enforcer process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        what = "One iteration of the loop: sample, attribute, detect, start kills, report."
        self.seconds: Final = self._histogram("enforcer_loop_duration_seconds", what, BUCKETS)
        self.violations: Final = self._counter("limit_violations", "Detections of containers over quota.", "action")
        self.reclaims: Final = self._counter("reclaims", "Decisions to take back borrowed memory.", "action")
        what = "Time for which a GPU with borrowers had too little free memory for what its shares reserved."
        self.reclaim_seconds: Final = self._histogram("reclaim_duration_seconds", what, RECLAIM_BUCKETS)
        self.results: Final = self._counter("kill_results", "Results of kill decisions.", "reason")
        self.signalled: Final = self._counter("process_results", "Results of kills, per process.", "reason")
        self.released: Final = self._counter(
            "mps_clients_terminated", "MPS clients of deleted pods that the enforcer terminated.", "reason"
        )
        self.failed: Final = self._counter(
            "memory_failures", "Containers that likely failed because of a GPU out-of-memory error.", "reason", "gpu"
        )
        self.nvml_errors: Final = self._counter("nvml_errors", "Failed NVML samples.", "reason")
        self.record_errors: Final = self._counter("audit_write_errors", "Audit records that failed to write.")
        what = "Duration of preparing or unpreparing a claim."
        buckets = (*BUCKETS, 10.0, 20.0)
        self.claim_seconds: Final = self._histogram("claim_duration_seconds", what, buckets, "operation")
        self.claim_failures: Final = self._counter(
            "claim_failures", "Failed prepare and unprepare calls.", "operation", "reason"
        )
        self.failures: Final = self._counter("enforcer_failures", "Kills that raised an exception (a bug).")
        self.latest: Final = StatusCollector()
        self.registry.register(self.latest)
        self._zero()

    def count(self, decision: KillDecision) -> None:
        """Count a decision, as one about borrowed memory or about a violation."""
        counter, actions = (self.reclaims, RECLAIMS) if decision.reclaim_mib else (self.violations, ACTIONS)
        if action := actions.get(decision.decision):
            counter.labels(action).inc()

    def finish(self, decision: KillDecision, result: Reason) -> None:
        """Count the result of a kill; one that ended processes also for the namespace of the container."""
        self.results.labels(str(result)).inc()
        if result is Reason.KILLED:
            quota, why = decision.quota, Reason.RECLAIMED if decision.reclaim_mib else Reason.OVER_QUOTA
            self.latest.kills[quota.namespace] += 1
            self.latest.last.append(((quota.namespace, quota.pod, quota.container, quota.gpu, str(why)), time.time()))

    def _zero(self) -> None:
        """Have series from the start: a rate over one that appears with its first event misses that event."""
        for action in ACTIONS.values():
            self.violations.labels(action)
        for action in RECLAIMS.values():
            self.reclaims.labels(action)
        for result in RESULTS:
            self.results.labels(str(result))
        for operation in OPERATIONS:
            self.claim_seconds.labels(operation)
            self.claim_failures.labels(operation, str(Reason.INTERNAL))
        self.nvml_errors.labels(str(Reason.NVML_UNAVAILABLE))

    def _histogram(self, name: str, help_: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"gpu_share_{name}", help_, labels, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"gpu_share_{name}", help_, labels, registry=self.registry)


class StatusCollector(Collector):
    """Gauges of the last status (``enforcer.status.node_status``), the kills of each namespace, and the last ones."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.kills = Counts[str]()
        self.last = deque[tuple[tuple[str, ...], float]](maxlen=LAST_KILLS)

    def update(self, status: dict[str, Any]) -> None:
        """Replace the status."""
        self.status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of one moment."""
        status = self.status
        gpus, containers = status.get("gpus", ()), status.get("containers", ())
        yield _plain(
            "enforcer_enforcing",
            "1 while the enforcer kills containers over quota, 0 while it only warns.",
            status.get("enforcing", False),
        )
        yield _problems(status.get("problemReasons", ()))
        breaker = status.get("kills", {}).get("breakerOpen", 0)
        yield _plain("breaker_open", "1 while the circuit breaker is open and the enforcer kills nothing.", breaker)
        yield _info(gpus, status.get("node", ""))
        yield from (_of_gpu(*family, gpus) for family in _AMOUNTS_OF_GPU)
        yield from (_condition(*family, gpus) for family in _CONDITIONS)
        yield _unavailable(gpus)
        yield from (_of_container(*family, containers) for family in _OF_CONTAINERS)
        yield _states(containers)
        yield _limit_states(containers)
        yield self._kills(containers)
        yield self._last_kills()

    def _kills(self, containers: Any) -> CounterMetricFamily:
        """Namespaces with a container count from 0: an increase that begins with the first kill would miss it."""
        help_ = "Kills of containers, by namespace."
        family = CounterMetricFamily("gpu_share_namespace_kills", help_, labels=["namespace"])
        for namespace in sorted({*self.kills, *(container["namespace"] for container in containers)}):
            family.add_metric([namespace], self.kills[namespace])
        return family

    def _last_kills(self) -> GaugeMetricFamily:
        help_ = f"When a container was killed (Unix time), of the last {LAST_KILLS} kills."
        return _family("kill_timestamp_seconds", help_, (*_OF_CONTAINER, "reason"), dict(self.last).items())


class VerificationCollector(Collector):
    """Gauges of the last verification of the audit log; its result has no series before the first."""

    def __init__(self, verifier: LogVerifier) -> None:
        self._verifier = verifier

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges."""
        finished = self._verifier.finished
        help_ = "When the enforcer last verified its audit log (Unix time); 0 before the first time."
        yield _plain("audit_verification_timestamp_seconds", help_, finished or 0)
        help_ = "1 if the last verification of the audit log found no problem, else 0."
        yield _family("audit_intact", help_, (), [] if finished is None else [((), self._verifier.problem is None)])


_OF_CONTAINERS: Final[Sequence[tuple[str, str, str, float]]] = (
    ("container_memory_used_bytes", "GPU memory that a container uses.", "usedMib", MIB),
    ("container_memory_peak_bytes", "Highest GPU memory that a sample has shown for a container.", "peakMib", MIB),
    ("container_memory_quota_bytes", "Quota of a container.", "quotaMib", MIB),
    ("container_memory_limit_bytes", "GPU memory that a container may hold, loans included.", "limitMib", MIB),
    ("container_memory_borrowed_bytes", "GPU memory that a container holds beyond its quota.", "borrowedMib", MIB),
    ("container_memory_reserved_bytes", "GPU memory that a container's share reserves.", "reservedMib", MIB),
    (
        "container_utilization_ratio", "Fraction of the time in which a container runs kernels, 0 to 1.",
        "utilizationPercent", 0.01,
    ),
    (
        "container_budget_used_seconds",
        "Seconds above the kill threshold that a container has used of its budget and that have not come back.",
        "budgetUsed", 1,
    ),
    ("container_mps_clients", "MPS clients of a container.", "mpsClients", 1),
    ("container_mps_clients_allowed", "MPS clients that the share of a container reserves.", "mpsClientsAllowed", 1),
)  # fmt: skip
"""Name, help, key in the status, factor."""
_AMOUNTS_OF_GPU: Final[Sequence[tuple[str, str, str, float]]] = (
    ("gpu_memory_used_bytes", "GPU memory in use.", "usedMib", MIB),
    ("gpu_memory_total_bytes", "Memory of the GPU.", "memoryMib", MIB),
    ("gpu_memory_unaccounted_bytes", "GPU memory in use that nobody is counted for.", "unaccountedMib", MIB),
    (
        "gpu_utilization_ratio",
        "Fraction of the time in which processes run kernels on the GPU, 0 to 1.",
        "utilizationPercent",
        0.01,
    ),
)
_CONDITIONS: Final = (
    ("gpu_nvml_unavailable", "1 while NVML cannot read the GPU.", "blind"),
    ("gpu_contended", "1 while another driver or device plugin offers the GPU too.", "contended"),
    ("gpu_unhealthy", "1 while the GPU gets no new shares because of errors.", "unhealthy"),
)


def _plain(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"gpu_share_{name}", help_, value=value)


def _family(
    name: str, help_: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gpu_share_{name}", help_, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _of_gpu(name: str, help_: str, key: str, factor: float, gpus: Any) -> GaugeMetricFamily:
    rows = (([gpu["uuid"]], gpu[key] * factor) for gpu in gpus if gpu[key] is not None)
    return _family(name, help_, ["gpu"], rows)


def _problems(present: Collection[str]) -> GaugeMetricFamily:
    help_ = "1 while the enforcer has a problem with this Reason."
    rows = (([reason], reason in present) for reason in sorted({*map(str, PROBLEMS), *present}))
    return _family("enforcer_problem", help_, ["reason"], rows)


def _info(gpus: Any, node: str) -> GaugeMetricFamily:
    rows = (([gpu["uuid"], str(gpu["index"]), gpu["model"], node, gpu["mode"] or ""], 1) for gpu in gpus)
    labels = ("gpu", "index", "model", "node", "mode")
    return _family("gpu_info", "Model and sharing mode of a GPU; always 1.", labels, rows)


def _unavailable(gpus: Any) -> GaugeMetricFamily:
    help_ = "Seconds for which the enforcer could not read the GPU through NVML; the label reason has the cause."
    unread = (gpu for gpu in gpus if gpu["blindFor"] is not None)
    rows = (([gpu["uuid"], gpu["blindReason"] or ""], gpu["blindFor"]) for gpu in unread)
    return _family("gpu_nvml_unavailable_seconds", help_, ["gpu", "reason"], rows)


def _condition(name: str, help_: str, key: str, gpus: Any) -> GaugeMetricFamily:
    return _family(name, help_, ["gpu"], (([gpu["uuid"]], gpu.get(key) is not None) for gpu in gpus))


def _names(container: Any) -> list[str]:
    return [container[label] for label in _OF_CONTAINER]


def _states(containers: Any) -> GaugeMetricFamily:
    rows = (([*_names(each), each["state"]], 1) for each in containers)
    return _family("container_state", "1 for the current state of a container.", (*_OF_CONTAINER, "state"), rows)


def _limit_states(containers: Any) -> GaugeMetricFamily:
    help_ = "1 for the verified state of a limit: InForce, PerProcessOnly, NotApplied, LimitEscaped or Unknown."
    found = ((each, each["limit"]) for each in containers if each.get("limit") is not None)
    rows = (([*_names(each), limit["backend"], limit["state"]], 1) for each, limit in found)
    return _family("limit_state", help_, (*_OF_CONTAINER, "backend", "state"), rows)


def _of_container(name: str, help_: str, key: str, factor: float, containers: Any) -> GaugeMetricFamily:
    rows = ((_names(each), each[key] * factor) for each in containers if each.get(key) is not None)
    return _family(name, help_, _OF_CONTAINER, rows)
