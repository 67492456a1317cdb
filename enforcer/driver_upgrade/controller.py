"""Release the NVIDIA kernel module while the GPU Operator upgrades the driver, and take the GPUs up again afterwards.

The order: evict the pods that hold shares; when the last one has gone the MPS daemons end
(``enforcer.mps.desired_daemons``), which needs NVML for the compute modes; then NVML is closed.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from enforcer.driver_upgrade.eviction import PodEvictor
from enforcer.limits.applier import LimitApplier
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.nvml.client import NvmlClient
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade, Phase
from enforcer.quota.prepared_claims import PreparedClaims
from enforcer.runtime.manager import Manager
from enforcer.status.events import EventRecorder, NodeEvent
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.reasons import Reason

EVERY: Final = 5.0
"""Seconds between turns; in service a turn reads the Node object from the API server's cache, and no more."""
NOTES: Final = {
    Phase.IN_SERVICE: "the driver upgrade has ended: the enforcer publishes the GPUs again",
    Phase.CORDONED: "a driver upgrade begins: the GPUs get no new shares",
    Phase.DRAINING: "a driver upgrade needs the GPUs: pods that share them are evicted, then NVML and MPS are closed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDependencies:
    """What the controller works with.

    Attributes:
        cluster: has the Node object.
        node: its name.
        upgrade: has the phase.
        evictor: evicts the pods.
        claims: those that are prepared.
        checkpoint: the quotas.
        nvml: closed at the end.
        limiter: has to query again what a driver supports.
        mps: the daemons; ``None``: there are none.
        events: for operators.
    """

    cluster: KubeClient
    node: str
    upgrade: DriverUpgrade
    evictor: PodEvictor
    claims: PreparedClaims
    checkpoint: Checkpoint
    nvml: NvmlClient
    limiter: LimitApplier
    mps: MpsSupervisor | None
    events: EventRecorder


class DriverUpgradeController:
    """Brings pods, MPS daemons and NVML to what the phase of the driver upgrade asks for.

    Args:
        parts: see there.
    """

    def __init__(self, parts: UpgradeDependencies) -> None:
        self._parts = parts
        self._reported = Phase.IN_SERVICE
        self._waits: str | None = "in service"

    def observe(self) -> None:
        """Read the phase; while the API server does not answer, the last one stays."""
        parts = self._parts
        with suppress(ClusterError):
            parts.upgrade.observe(parts.cluster.get(path(CORE_V1, "nodes", parts.node), resourceVersion="0"))

    def run_once(self) -> None:
        """Do what the phase asks for. What cannot be done yet is tried again at the next turn."""
        self.observe()
        parts, phase = self._parts, self._parts.upgrade.phase
        draining, known = phase is Phase.DRAINING, phase is self._reported
        if not known:
            self._report(phase)
        # Not in the first turn: a pod that comes for an evicted one must not find this node's GPUs on offer.
        parts.evictor.evict_pods(parts.checkpoint.latest if draining and known else ())
        self._waits = self._missing() if draining else "in service"
        if self._waits is None:
            parts.nvml.pause()
        elif parts.nvml.resume():
            parts.limiter.forget()
            parts.upgrade.wake()  # what needed NVML meanwhile failed
        elif draining:
            parts.upgrade.wake()  # MPS daemons end as soon as they may

    def _report(self, phase: Phase) -> None:
        self._reported = phase
        warning = phase is not Phase.IN_SERVICE
        reason = Reason.DRIVER_UPGRADE if warning else Reason.RECOVERED
        self._parts.events.record_on_node(NodeEvent(reason, NOTES[phase], warning=warning))

    def problems(self) -> Iterator[str]:
        """Say what keeps the GPUs from being released, or that they are."""
        if self._parts.upgrade.draining:
            yield f"a driver upgrade waits: {self._waits}" if self._waits else "NVML is closed for a driver upgrade"
            yield from self._parts.evictor.problems()

    def _missing(self) -> str | None:
        """Return what has to go before NVML is closed; ``None`` if nothing has to."""
        if self._parts.checkpoint.latest or self._parts.claims.gpus() != frozenset():
            return "pods that share GPUs of this node still run"
        if self._parts.mps is not None and not self._parts.mps.all_stopped:
            return "MPS daemons of this node still run"
        return None


def follow_upgrade(manager: Manager, parts: UpgradeDependencies, thread: str) -> None:
    """Follow the node's labels, and do what they ask for.

    Args:
        manager: of the threads.
        parts: of the controller.
        thread: of its task.
    """
    controller = DriverUpgradeController(parts)
    # Before the tasks start: an enforcer that starts during an upgrade must not start MPS daemons.
    manager.add_server("driver upgrade", controller.observe, None)
    manager.add_problem_check(controller.problems, Reason.DRIVER_UPGRADE)
    manager.add("driver upgrade", controller.run_once, every=EVERY, thread=thread)
