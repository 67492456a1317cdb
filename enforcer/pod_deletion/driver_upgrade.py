"""Release the NVIDIA kernel module while the GPU Operator upgrades the driver, and take the GPUs up again afterwards.

The order: evict the pods that hold shares; when the last one has gone the MPS daemons end
(``enforcer.mps.desired_daemons``), which needs NVML for the compute modes; then NVML is closed.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from enforcer.limits.applier import LimitApplier
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.nvml.client import NvmlClient
from enforcer.pod_deletion.eviction import PodEvictor
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade, Phase
from enforcer.quota.informer import follow, watch_failed
from enforcer.quota.prepared_claims import PreparedClaims
from enforcer.runtime.manager import Manager
from enforcer.status.events import NodeEvent, NodeEventRecorder
from gpushare.errors import ClusterError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.reasons import Reason

Object = dict[str, Any]
EVERY: Final = 2.0
"""Seconds between turns; in service a turn does nothing."""
NOTES: Final = {
    Phase.IN_SERVICE: "the driver upgrade has ended: the GPUs are offered again",
    Phase.CORDONED: "a driver upgrade begins: the GPUs get no new shares",
    Phase.DRAINING: "a driver upgrade needs the GPUs: pods that share them are evicted, then NVML and MPS are closed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDependencies:
    """What the controller works with.

    Attributes:
        upgrade: has the phase.
        evictor: evicts the pods.
        claims: those that are prepared.
        checkpoint: the quotas.
        nvml: closed at the end.
        limiter: has to learn anew what a driver supports.
        mps: the daemons; ``None``: there are none.
        events: for operators.
    """

    upgrade: DriverUpgrade
    evictor: PodEvictor
    claims: PreparedClaims
    checkpoint: Checkpoint
    nvml: NvmlClient
    limiter: LimitApplier
    mps: MpsSupervisor | None
    events: NodeEventRecorder


class DriverUpgradeController:
    """Brings pods, MPS daemons and NVML to what the phase of the driver upgrade asks for.

    Args:
        parts: see there.
    """

    def __init__(self, parts: UpgradeDependencies) -> None:
        self._parts = parts
        self._reported = Phase.IN_SERVICE
        self._waits: str | None = None

    def run_once(self) -> None:
        """Do what the phase asks for. What cannot be done yet is tried again at the next turn."""
        parts, phase = self._parts, self._parts.upgrade.phase
        if phase is not self._reported:
            self._reported = phase
            warning = phase is not Phase.IN_SERVICE
            reason = Reason.DRIVER_UPGRADE if warning else Reason.RECOVERED
            parts.events.report(NodeEvent(reason, NOTES[phase], warning=warning))
        quotas = parts.checkpoint.latest if phase is Phase.DRAINING else ()
        parts.evictor.turn(quotas)
        self._waits = self._missing() if phase is Phase.DRAINING else "in service"
        if self._waits is None:
            parts.nvml.pause()
        elif parts.nvml.resume():
            parts.limiter.forget()

    def problems(self) -> Iterator[str]:
        """Say what keeps the GPUs from being released, or that they are."""
        if self._parts.upgrade.draining:
            yield f"the GPU driver is upgraded: {self._waits or 'NVML is closed'}"
            yield from self._parts.evictor.problems()

    def _missing(self) -> str | None:
        """Return what has to go before NVML is closed; ``None`` if nothing has to."""
        if self._parts.checkpoint.latest or self._parts.claims.gpus() != frozenset():
            return "pods that share its GPUs have not gone yet"
        if self._parts.mps is not None and not self._parts.mps.ended:
            return "MPS daemons have not ended yet"
        return None


def follow_upgrade(manager: Manager, cluster: KubeClient, node: str, parts: UpgradeDependencies, thread: str) -> None:
    """Follow the node's labels, and do what they ask for.

    Args:
        manager: of the threads.
        cluster: has the Node object.
        node: its name.
        parts: of the controller.
        thread: of its task.
    """
    controller, where = DriverUpgradeController(parts), path(CORE_V1, "nodes")
    manager.add_server("driver upgrade", partial(_restore, cluster, node, parts.upgrade), None)
    query = {"fieldSelector": f"metadata.name={node}"}
    follow(
        manager,
        "node",
        Informer(
            cluster, where, partial(_listed, parts.upgrade), partial(_changed, parts.upgrade), watch_failed, **query
        ),
    )
    manager.add_problem_check(controller.problems)
    manager.add("driver upgrade", controller.run_once, every=EVERY, wake=parts.upgrade.changed, thread=thread)


def _restore(cluster: KubeClient, node: str, upgrade: DriverUpgrade) -> None:
    """Read the phase before the tasks start: an enforcer that starts during an upgrade must not start MPS daemons."""
    with suppress(ClusterError):  # the informer reads it again
        upgrade.observe(cluster.get(path(CORE_V1, "nodes", node)))


def _listed(upgrade: DriverUpgrade, nodes: Iterable[Object]) -> None:
    for node in nodes:
        upgrade.observe(node)


def _changed(upgrade: DriverUpgrade, change: str, node: Object) -> None:
    if change != "DELETED":
        upgrade.observe(node)
