"""Recheck a container while it is being killed: its usage of the GPU, and its quota, both as they are now.

The disk and MPS may take half a minute between the kill decision and the signal. In that time a quota may be raised, a
namespace's policy changed, or a claim unprepared. A container that is not over its quota by what is in force now is
spared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.hidden_memory import HiddenMemory
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.quota.types import Quota
from gpushare.reasons import Reason


@dataclass(frozen=True, slots=True)
class Rechecker:
    """Samples containers again, and reads their quotas again."""

    usage: UsageSampler | HiddenMemory
    quotas: GuardedQuotas

    def processes(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        """Return the container's GPU processes now; ``None`` while NVML is unavailable."""
        return self.usage.usages_of(quota)

    def current_quota(self, quota: Quota) -> Quota:
        """Return the quota now. A changed policy selects other processes, and is for the next kill decision."""
        return replace(self.quotas.in_force(quota) or quota, on_exceed=quota.on_exceed)

    def reason_to_spare(self, quota: Quota, processes: Sequence[ProcessUsage] | None) -> Reason | None:
        """Return why a container with these GPU processes must not be killed now; ``None``: it is over its quota."""
        if processes is None:
            return Reason.NVML_UNAVAILABLE
        now = self.quotas.in_force(quota)
        if now is None:
            return Reason.NOT_ENFORCING
        return None if total_mib(processes) > now.ceiling_mib else Reason.BACK_UNDER_QUOTA
