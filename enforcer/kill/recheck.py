"""How a container stands while it is being ended: what it holds of its GPU, and what it may hold, both as they are now.

Between a judgement and the signal there may be half a minute of disk and MPS. In that time a quota may be raised, a
namespace's policy changed, a claim undone; who is no longer over by what holds now is let be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.quota.types import Quota
from gpushare.reasons import Reason

InForce = Callable[[Quota], Quota | None]
"""From the quota that a container was judged by to what it may hold now: no less; ``None``: it is not to be ended."""


class UsageSource(Protocol):
    """A fresh look at one container's use of its GPU."""

    def holders(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        """Who in the container holds how much now; ``None`` when blind."""


def unchanged(quota: Quota) -> Quota:
    """Say that nothing has changed since."""
    return quota


@dataclass(frozen=True, slots=True)
class Rechecker:
    """Looks at containers and asks for their quotas."""

    eyes: UsageSource
    in_force: InForce = unchanged

    def holders(self, quota: Quota) -> tuple[ProcessUsage, ...] | None:
        """Who in the container holds how much now; ``None`` when blind."""
        return self.eyes.holders(quota)

    def allowed(self, quota: Quota) -> Quota:
        """What the container may hold now; another policy ends other processes, and is for the next judgement."""
        return replace(self.in_force(quota) or quota, on_exceed=quota.on_exceed)

    def let_be(self, quota: Quota, holders: Sequence[ProcessUsage] | None) -> Reason | None:
        """Why a container that holds so much is not to be ended now; ``None`` where it is."""
        if holders is None:
            return Reason.NVML_UNAVAILABLE
        now = self.in_force(quota)
        if now is None:
            return Reason.NOT_ENFORCING
        return None if total_mib(holders) > now.ceiling_mib else Reason.BACK_UNDER_QUOTA
