"""Follow the GPU Operator's driver upgrade of this node, by the labels that the operator sets on the node.

Other parts read the phase: shares are offered and prepared only in service, and MPS daemons end while the node drains.
``enforcer.driver_upgrade.controller`` evicts pods and closes NVML.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import structlog

from enforcer.runtime.manager import Wake
from gpushare.errors import PrepareError
from gpushare.reasons import Reason

log = structlog.get_logger()

STATE: Final = "nvidia.com/gpu-driver-upgrade-state"
"""Label of the operator's upgrade controller."""
COMPONENTS: Final = "nvidia.com/gpu.deploy."
"""Prefix of the labels by which NVIDIA's driver manager and MIG manager stop GPU clients."""
PAUSED: Final = "paused-for-"
"""Part of those labels' values: ``paused-for-driver-upgrade``, ``paused-for-mig-change``. A value other than ``true``
stays in front of it."""
CORDONED_STATES: Final = frozenset({"cordon-required", "wait-for-jobs-required", "node-maintenance-required"})
"""Pods may end by themselves: the operator waits for the jobs that its upgrade policy names."""
DRAINED_STATES: Final = frozenset(
    {
        "pod-deletion-required", "drain-required", "post-maintenance-required", "pod-restart-required",
        # A GPU that MPS holds in exclusive mode fails the operator's validation.
        "validation-required",
        # The driver's pod tries again by itself, and must find the module free.
        "upgrade-failed",
    }
)  # fmt: skip


class Phase(StrEnum):
    """What a driver upgrade asks of the node's shares."""

    IN_SERVICE = "InService"
    CORDONED = "Cordoned"
    """No new shares; running pods keep theirs."""
    DRAINING = "Draining"
    """No shares at all: pods are evicted, then MPS daemons end and NVML is closed."""


def phase_of(labels: Mapping[str, str]) -> Phase:
    """Return the phase by the node's labels. States that are unknown here ask for nothing."""
    state = labels.get(STATE, "")
    paused = any(key.startswith(COMPONENTS) and PAUSED in value for key, value in labels.items())
    if paused or state in DRAINED_STATES:
        return Phase.DRAINING
    return Phase.CORDONED if state in CORDONED_STATES else Phase.IN_SERVICE


class DriverUpgrade:
    """The driver upgrade of this node. Any thread may ask.

    Args:
        followers: set when the phase changes.

    Attributes:
        phase: the present one. Without an API server it never changes.
    """

    def __init__(self, followers: Sequence[Wake] = ()) -> None:
        self._followers = tuple(followers)
        self.phase = Phase.IN_SERVICE

    def observe(self, node: Mapping[str, Any]) -> None:
        """Read the phase from the Node object."""
        phase = phase_of(node["metadata"].get("labels") or {})
        if phase is self.phase:
            return
        log.info("driver upgrade", reason=str(Reason.DRIVER_UPGRADE), phase=str(phase), before=str(self.phase))
        self.phase = phase
        self.wake()

    def wake(self) -> None:
        """Wake the followers."""
        for wake in self._followers:
            wake.set()

    @property
    def draining(self) -> bool:
        """Whether the node drains for the upgrade."""
        return self.phase is Phase.DRAINING

    @property
    def objection(self) -> str | None:
        """Return why the node's GPUs get no new shares; ``None`` if they may."""
        if self.phase is Phase.IN_SERVICE:
            return None
        return (
            f"{Reason.DRIVER_UPGRADE}: the GPU Operator upgrades the node's driver; the GPU gets no new "
            "shares until the upgrade ends"
        )

    def check(self, *, prepared: bool) -> None:
        """Refuse a claim that may not be prepared now.

        Args:
            prepared: the claim is prepared already, so its pod may be running.

        Raises:
            PrepareError: the node drains, or the claim is a new one during the upgrade.
        """
        if self.draining or (self.phase is Phase.CORDONED and not prepared):
            message = "the GPU Operator upgrades this node's driver; the claim is prepared once the upgrade has ended"
            raise PrepareError(message, Reason.DRIVER_UPGRADE)
