"""Recheck a container while it is being killed: its usage of the GPU, and its quota, both as they are now.

The disk and MPS may take half a minute between the kill decision and the signal. In that time a quota may be raised, a
namespace's policy changed, or a claim unprepared. A container that is not over its quota by what is in force now is
spared.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.hidden_memory import HiddenMemory
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.quota.types import Quota
from gpushare.reasons import Reason

READS: Final = 200
READ_SECONDS: Final = 0.02
"""Readings, and seconds between two on average, before a container of which a budget is overdrawn is spared.

Where several containers take turns, each is within its quota in most single readings. As many as MPS serves, with turns
too short for three samples, come round in this time (``tests/unit/enforcer/detection/adversary.py``)."""


@dataclass(frozen=True, slots=True)
class Rechecker:
    """Samples containers again, and reads their quotas again."""

    usage: UsageSampler | HiddenMemory
    quotas: GuardedQuotas

    def processes(self, quota: Quota, *, overdrawn: bool = False) -> tuple[ProcessUsage, ...] | None:
        """Return the container's GPU processes now; ``None`` while NVML is unavailable.

        ``overdrawn``: of a few readings, the first over its quota counts.
        """
        usages = self.usage.usages_of(quota)
        for _ in range(READS - 1 if overdrawn else 0):
            if self.reason_to_spare(quota, usages) is not Reason.BACK_UNDER_QUOTA:
                break
            self.wait(READ_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - no secret depends on it
            usages = self.usage.usages_of(quota)
        return usages

    def wait(self, seconds: float) -> None:
        """Wait until the next reading."""
        time.sleep(seconds)

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
