"""The enforcer's metrics.

What changes with every look is read off the last snapshot, so that a scrape sees one moment and a container that is
gone leaves no series behind.
"""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpushare.quantity import MIB

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_OF_CONTAINER: Final = ("namespace", "pod", "container", "gpu")


class Metrics:
    """Every metric of one enforcer process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.seconds: Final = Histogram(
            "gpu_share_enforcer_loop_duration_seconds",
            "One iteration of the loop: sample, attribute, detect, start kills, report.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.violations: Final = self._counter("limit_violations", "Containers found over quota.", "action")
        self.results: Final = self._counter("kill_results", "What came of decisions to kill.", "reason")
        self.signalled: Final = self._counter("process_results", "Processes acted upon.", "reason")
        self.released: Final = self._counter(
            "mps_clients_terminated", "MPS clients of pods being deleted, released before they are killed.", "reason"
        )
        self.failed: Final = self._counter(
            "memory_failures", "Containers that failed, likely for want of GPU memory.", "reason", "gpu"
        )
        self.nvml_errors: Final = self._counter("nvml_errors", "Looks at a GPU that failed.", "reason")
        self.record_errors: Final = self._counter("audit_write_errors", "Records that could not be made durable.")
        self.claim_seconds: Final = Histogram(
            "gpu_share_claim_duration_seconds",
            "Preparing a claim for the kubelet, or undoing it.",
            ("operation",),
            buckets=(*BUCKETS, 10.0, 20.0),
            registry=self.registry,
        )
        self.claim_failures: Final = self._counter(
            "claim_failures", "Claims not prepared or undone.", "operation", "reason"
        )
        self.failures: Final = self._counter("enforcer_failures", "Bugs: kills that ended in an exception.")
        self.latest: Final = Latest()
        self.registry.register(self.latest)
        for action in ("warned", "in_debt", "killed", "rate_limited", "breaker_open", "back_under"):
            self.violations.labels(action)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"gpu_share_{name}", help_, labels, registry=self.registry)


class Latest(Collector):
    """Gauges of the last status (``enforcer.status.node_status``)."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = {}

    def show(self, status: dict[str, Any]) -> None:
        """Take in a status."""
        self.status = status

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of one moment."""
        status = self.status
        yield _plain("enforcer_enforcing", "1 while over-quota processes are ended.", status.get("enforcing", False))
        yield _plain("enforcer_problems", "Things that hinder enforcement.", len(status.get("problems", ())))
        kills = status.get("kills", {})
        yield _plain(
            "breaker_open", "1 while the breaker keeps anybody from being killed.", kills.get("breakerOpen", 0)
        )
        gpus = status.get("gpus", ())
        yield _of_gpu("gpu_memory_used_bytes", "GPU memory in use.", "usedMib", gpus)
        yield _of_gpu("gpu_memory_total_bytes", "GPU memory there is.", "memoryMib", gpus)
        yield _of_gpu("gpu_memory_unattributed_bytes", "In use by no process we see.", "unattributedMib", gpus)
        yield _growth(gpus)
        blind = GaugeMetricFamily("gpu_share_gpu_nvml_unavailable", "1 while the GPU cannot be read.", labels=["gpu"])
        for gpu in gpus:
            blind.add_metric([gpu["uuid"]], gpu["blind"] is not None)
        yield blind
        lasts = GaugeMetricFamily(
            "gpu_share_gpu_nvml_unavailable_seconds",
            "Since when the GPU cannot be read, and why.",
            labels=["gpu", "reason"],
        )
        for gpu in gpus:
            if gpu.get("blindFor") is not None:
                lasts.add_metric([gpu["uuid"], gpu["blindReason"] or ""], gpu["blindFor"])
        yield lasts
        yield _condition("gpu_contended", "1 while somebody else offers the GPU as well.", "contended", gpus)
        yield _condition(
            "gpu_unhealthy", "1 while the GPU gets no new shares because it is not well.", "unhealthy", gpus
        )
        containers = status.get("containers", ())
        yield _of_container("container_memory_used_bytes", "GPU memory a container holds.", "usedMib", containers)
        yield _of_container("container_memory_quota_bytes", "Quota of a container in bytes.", "quotaMib", containers)
        yield _of_container("container_debt_seconds", "Seconds over quota that count.", "debt", containers, 1)
        yield _of_container("container_mps_clients", "MPS clients a container has.", "mpsClients", containers, 1)
        yield _of_container(
            "container_mps_clients_allowed", "MPS clients its share counts as.", "mpsClientsAllowed", containers, 1
        )
        yield _limit_states(containers)


def _plain(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"gpu_share_{name}", help_, value=value)


def _of_gpu(name: str, help_: str, key: str, gpus: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gpu_share_{name}", help_, labels=["gpu"])
    for gpu in gpus:
        if gpu[key] is not None:
            family.add_metric([gpu["uuid"]], gpu[key] * MIB)
    return family


def _growth(gpus: Any) -> GaugeMetricFamily:
    help_ = "By how much it grew; of a container where it alone ran kernels meanwhile. A hint, and no reason to kill."
    family = GaugeMetricFamily("gpu_share_gpu_memory_unattributed_growth_bytes", help_, labels=_OF_CONTAINER)
    for gpu in gpus:
        if (found := gpu.get("unattributedGrowth")) is not None:
            names = found["only"].split("/") if found["only"] else ["", "", ""]
            family.add_metric([*names, gpu["uuid"]], (found["mib"] - found["fromMib"]) * MIB)
    return family


def _condition(name: str, help_: str, key: str, gpus: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gpu_share_{name}", help_, labels=["gpu"])
    for gpu in gpus:
        family.add_metric([gpu["uuid"]], gpu.get(key) is not None)
    return family


def _limit_states(containers: Any) -> GaugeMetricFamily:
    help_ = "1 for what is known of a container's limit: InForce, PerProcessOnly, NotApplied, LimitEscaped or Unknown."
    family = GaugeMetricFamily("gpu_share_limit_state", help_, labels=[*_OF_CONTAINER, "backend", "state"])
    for container in containers:
        if (limit := container.get("limit")) is not None:
            values = [container[label] for label in _OF_CONTAINER]
            family.add_metric([*values, limit["backend"], limit["state"]], 1)
    return family


def _of_container(name: str, help_: str, key: str, containers: Any, unit: int = MIB) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gpu_share_{name}", help_, labels=_OF_CONTAINER)
    for container in containers:
        if container.get(key) is not None:
            family.add_metric([container[label] for label in _OF_CONTAINER], container[key] * unit)
    return family
