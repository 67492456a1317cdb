"""Quotas for tests of a kill alone."""

from collections.abc import Callable, Iterable
from pathlib import Path

from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Quota


class UnchangedQuotas(Checkpoint):
    """Each quota is in force as it was when the kill was decided, or as a test says."""

    def __init__(self, now: Callable[[Quota], Quota | None] = lambda quota: quota) -> None:
        super().__init__(Path("/nowhere"))
        self._now = now

    def in_force(self, quota: Quota) -> Quota | None:
        return self._now(quota)


def in_force(now: Callable[[Quota], Quota | None] = lambda quota: quota) -> GuardedQuotas:
    """The quotas of a node whose breaker is closed; see ``UnchangedQuotas``."""
    return GuardedQuotas(Path("/nowhere"), UnchangedQuotas(now))


def of_containers(quotas: Iterable[Quota]) -> tuple[Quota, ...]:
    """Leave the rows of whole pods out."""
    return tuple(each for each in quotas if not each.whole_pod)
