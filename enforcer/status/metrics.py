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
        self.violations: Final = self._counter("limit_violations", "Detections of containers over quota.", "action")
        self.results: Final = self._counter("kill_results", "Results of kill decisions.", "reason")
        self.signalled: Final = self._counter("process_results", "Results of kills, per process.", "reason")
        self.released: Final = self._counter(
            "mps_clients_terminated", "MPS clients of deleted pods that the enforcer terminated.", "reason"
        )
        self.failed: Final = self._counter(
            "memory_failures", "Containers that likely failed for want of GPU memory.", "reason", "gpu"
        )
        self.nvml_errors: Final = self._counter("nvml_errors", "Failed NVML samples.", "reason")
        self.record_errors: Final = self._counter("audit_write_errors", "Audit records that failed to write.")
        self.claim_seconds: Final = Histogram(
            "gpu_share_claim_duration_seconds",
            "Duration of preparing or unpreparing a claim.",
            ("operation",),
            buckets=(*BUCKETS, 10.0, 20.0),
            registry=self.registry,
        )
        self.claim_failures: Final = self._counter(
            "claim_failures", "Failed prepare and unprepare calls.", "operation", "reason"
        )
        self.failures: Final = self._counter("enforcer_failures", "Kills that raised an exception (a bug).")
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
        yield _plain("enforcer_enforcing", "1 while the enforcer may kill.", status.get("enforcing", False))
        yield _plain("enforcer_problems", "Problems in status.json.", len(status.get("problems", ())))
        kills = status.get("kills", {})
        yield _plain("breaker_open", "1 while the circuit breaker is open: no kills.", kills.get("breakerOpen", 0))
        gpus = status.get("gpus", ())
        yield _of_gpu("gpu_memory_used_bytes", "GPU memory in use.", "usedMib", gpus)
        yield _of_gpu("gpu_memory_total_bytes", "Total GPU memory.", "memoryMib", gpus)
        yield _of_gpu("gpu_memory_unattributed_bytes", "GPU memory of no visible process.", "unattributedMib", gpus)
        yield _growth(gpus)
        blind = GaugeMetricFamily("gpu_share_gpu_nvml_unavailable", "1 while NVML is unavailable.", labels=["gpu"])
        for gpu in gpus:
            blind.add_metric([gpu["uuid"]], gpu["blind"] is not None)
        yield blind
        lasts = GaugeMetricFamily(
            "gpu_share_gpu_nvml_unavailable_seconds",
            "Seconds for which NVML has been unavailable, by reason.",
            labels=["gpu", "reason"],
        )
        for gpu in gpus:
            if gpu.get("blindFor") is not None:
                lasts.add_metric([gpu["uuid"], gpu["blindReason"] or ""], gpu["blindFor"])
        yield lasts
        yield _condition("gpu_contended", "1 while another driver offers the GPU too.", "contended", gpus)
        yield _condition("gpu_unhealthy", "1 while the GPU is unhealthy and gets no new shares.", "unhealthy", gpus)
        containers = status.get("containers", ())
        yield _of_container("container_memory_used_bytes", "GPU memory in use by a container.", "usedMib", containers)
        yield _of_container("container_memory_quota_bytes", "GPU memory quota of a container.", "quotaMib", containers)
        yield _of_container("container_debt_seconds", "Debt: seconds of earlier violations.", "debt", containers, 1)
        yield _of_container("container_mps_clients", "MPS clients of a container.", "mpsClients", containers, 1)
        yield _of_container(
            "container_mps_clients_allowed", "MPS clients a share reserves.", "mpsClientsAllowed", containers, 1
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
    help_ = "Growth of unattributed GPU memory; labels name a container if it alone ran kernels meanwhile. A hint only."
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
    help_ = "1 for the verified state of a limit: InForce, PerProcessOnly, NotApplied, LimitEscaped or Unknown."
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
