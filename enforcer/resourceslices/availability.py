"""Put together which GPUs may be shared now: who else offers them, their health, sharing mode and limit back end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from enforcer.attribution.usage import UsageSampler
from enforcer.nvml.device_health import GpuConditions
from enforcer.nvml.types import Gpu
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.resourceslices.contention_monitor import ContentionMonitor
from enforcer.resourceslices.devices import of_gpu
from enforcer.resourceslices.health_monitor import GpuHealthMonitor
from gpushare.reasons import Reason


class LimitBackends(Protocol):
    """Knows the limit back ends; ``enforcer.limits.applier.LimitApplier`` does."""

    def backends(self) -> Mapping[str, str]:
        """Return the limit back end of each GPU, by UUID; a GPU whose back end is not chosen yet is missing."""


@dataclass(eq=False)
class GpuAvailability:
    """Tells the conditions of this node's GPUs.

    Args:
        contention: finds who else offers them; ``None``: there is no cluster, and nobody can.
        monitor: decides about them; ``None``: they are not published, and it does not run.
        modes: how they are shared.
        limits: who keeps limits on them.
        watch: samples them.
        upgrade: of the driver; while it lasts no GPU is offered.
    """

    contention: ContentionMonitor | None
    monitor: GpuHealthMonitor | None
    modes: SharingModeController
    limits: LimitBackends
    watch: UsageSampler
    upgrade: DriverUpgrade

    def check(self, gpus: Sequence[Gpu]) -> GpuConditions:
        """Return all that is known, after a check who else offers these GPUs. May take seconds."""
        contended = {} if self.contention is None else self.contention.check(gpus)
        return GpuConditions(
            unhealthy=self._unhealthy(), contended=contended, backends=self.limits.backends(),
            objection=self.upgrade.objection,
        )  # fmt: skip

    def cached(self) -> GpuConditions:
        """Return all that is known of the GPUs that were sampled last, without a check."""
        ways, gpus = self.modes.current(), [view.gpu for view in self.watch.latest if not view.gpu.mig_enabled]
        modes = {gpu.uuid: str(mode) for gpu in gpus if (mode := ways.of(gpu.uuid)) is not None}
        contended = {} if self.contention is None else self.contention.current
        return GpuConditions(unhealthy=self._unhealthy(), contended=contended, modes=modes)

    def health(self) -> dict[str, Reason | None]:
        """Return by UUID why each GPU that was sampled is unhealthy; ``None`` where it is healthy."""
        unhealthy = self._unhealthy()
        return {**unhealthy, **{view.gpu.uuid: of_gpu(unhealthy, view.gpu) for view in self.watch.latest}}

    def _unhealthy(self) -> Mapping[str, Reason]:
        return {} if self.monitor is None else self.monitor.unhealthy
