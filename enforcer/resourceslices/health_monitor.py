"""Looks at the GPUs' health: what NVML says of a card, what was seen of it, and whether its MPS daemon keeps up."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.nvml.device_health import APPLICATION_XIDS, Health, update_health
from enforcer.quota.checkpoint import Checkpoint
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.status.events import EventRecorder, NodeEvent
from enforcer.status.messages import UserMessage
from gpushare.errors import ClusterError, GpuShareError, MpsError, NvmlError
from gpushare.reasons import Reason

log = structlog.get_logger()

WORDS: Final = {
    Reason.GPU_LOST: "the driver has lost the GPU; reset the GPU or reboot the node",
    Reason.ECC_UNCORRECTABLE: "the GPU has memory errors that only a reset repairs",
    Reason.CRITICAL_XID: "the driver reported a critical error of the GPU (XID, see the kernel log)",
    Reason.NVML_UNAVAILABLE: "NVML cannot read the GPU",
    Reason.NVML_HUNG: "the NVIDIA driver hangs",
    Reason.NVML_CRASHED: "the NVML library crashes",
    Reason.NVML_DENIED: "the driver denies the enforcer access to the GPU",
    Reason.DRIVER_MISMATCH: "the NVIDIA driver and its library have different versions",
    Reason.MPS_UNREACHABLE: "the MPS daemon of the GPU does not keep running",
    Reason.MPS_FAULT: "a GPU fault stopped the MPS server, which accepts no client until its old clients exit",
}


class HealthProbe(Protocol):
    """What NVML knows of a GPU's health; ``enforcer.nvml.reader.NvmlReader`` does."""

    def ailment(self, uuid: str) -> Reason | None:
        """Say what is wrong with a GPU. Raises ``NvmlError``."""

    def critical_errors(self) -> Sequence[tuple[str, int]]:
        """Say which critical errors happened since the last question: UUID and XID. Raises ``NvmlError``."""


class DaemonFailures(Protocol):
    """Knows why MPS daemons do not serve; ``enforcer.mps.supervisor.MpsSupervisor`` does."""

    @property
    def failures(self) -> Mapping[str, GpuShareError]:
        """By GPU, why its daemon does not serve."""


@dataclass(eq=False)
class GpuHealthMonitor:
    """Keeps a judgement on each GPU.

    Args:
        watch: samples the GPUs.
        examiner: see there.
        mps: knows what is wrong with daemons; ``None``: there are none.
        checkpoint: the quotas of the containers, whose owners get a message when their GPU changed.
        events: takes the messages, also to operators.
        changed: set when a judgement changed.
    """

    watch: UsageSampler
    examiner: HealthProbe
    mps: DaemonFailures | None
    checkpoint: Checkpoint
    events: EventRecorder
    changed: threading.Event
    _known: dict[str, Health] = field(default_factory=dict, init=False)

    @property
    def unhealthy(self) -> Mapping[str, Reason]:
        """By UUID, what is wrong with the GPUs that are not fit for new shares."""
        # Asked from another thread, while a turn may add a GPU.
        return {gpu: health.unhealthy for gpu, health in dict(self._known).items() if health.unhealthy is not None}

    def restore(self, publisher: SlicePublisher) -> None:
        """Take over what an enforcer before us found, from the node's slices: a restart heals nothing.

        If they cannot be read, what was is found again, or is over.
        """
        with suppress(ClusterError):
            self._known = {gpu: Health(unhealthy=reason) for gpu, reason in publisher.unhealthy().items()} | self._known

    def check(self) -> bool:
        """Look once; return whether a judgement changed."""
        before, views, mps = self.unhealthy, self.watch.latest, {} if self.mps is None else self.mps.failures
        struck = self._struck()
        for view in views:
            gpu = view.gpu.uuid
            seen = self._seen(view, mps.get(gpu))
            self._known[gpu] = update_health(self._known.get(gpu, Health()), seen, xid=gpu in struck)
        self._tell(before, self.unhealthy)
        if before != self.unhealthy:
            self.changed.set()
        return before != self.unhealthy

    def _seen(self, view: GpuSnapshot, mps: GpuShareError | None) -> Reason | None:
        # What cannot be believed of a GPU makes us blind, and is no illness: it comes from races and odd drivers too.
        if view.problem is not None and view.problem.reason in WORDS:
            return view.problem.reason
        try:
            if (found := self.examiner.ailment(view.gpu.uuid)) is not None:
                return found
        except NvmlError as error:
            log.debug("not examined", reason=str(error.reason), gpu=view.gpu.uuid, error=error.message)
        if mps is None or not _daemon_fails(mps):
            return None
        return Reason.MPS_FAULT if mps.reason is Reason.MPS_FAULT else Reason.MPS_UNREACHABLE

    def _struck(self) -> frozenset[str]:
        try:
            errors = self.examiner.critical_errors()
        except NvmlError:
            return frozenset()
        for gpu, number in errors:
            log.warning("critical GPU error (XID)", reason=str(Reason.CRITICAL_XID), gpu=gpu, xid=number)
        return frozenset(gpu for gpu, number in errors if number not in APPLICATION_XIDS)

    def _tell(self, before: Mapping[str, Reason], now: Mapping[str, Reason]) -> None:
        for gpu in now.keys() - before.keys():
            why = WORDS.get(now[gpu], str(now[gpu]))
            self.events.record_on_node(NodeEvent(now[gpu], f"GPU {gpu} gets no new shares: {why}"))
            self._tell_tenants(gpu, now[gpu], f"the GPU of this container, {gpu}, is unhealthy: {why}")
        for gpu in before.keys() - now.keys():
            self.events.record_on_node(NodeEvent(Reason.RECOVERED, f"GPU {gpu} is healthy again", warning=False))
            self._tell_tenants(gpu, Reason.RECOVERED, f"the GPU of this container, {gpu}, is healthy again")

    def _tell_tenants(self, gpu: str, reason: Reason, note: str) -> None:
        warning = reason is not Reason.RECOVERED
        for quota in self.checkpoint.latest:
            if quota.gpu == gpu and quota.granted:
                self.events.record(UserMessage(quota=quota, reason=reason, note=note, action="Watch", warning=warning))


def _daemon_fails(error: GpuShareError) -> bool:
    """Whether it is the daemon's own failure.

    A tenant can block a daemon's administration or change its limit, which must not let it empty the GPU of others.
    What NVML did not answer on that way is seen by our own eyes, and sooner.
    """
    return isinstance(error, MpsError) and error.reason not in {
        Reason.MPS_CONTROL_BLOCKED,
        Reason.MPS_LIMIT_NOT_APPLIED,
    }
