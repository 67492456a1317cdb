"""Going after a container's processes, round by round, until it is within its quota.

Before each process it is looked again: whether the container still is over, and who that process is.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from enforcer import deeds
from enforcer.hold import Grip, Victim
from enforcer.judge import Holder, targets, total
from enforcer.ladder import Kin, Ladder
from enforcer.model import OnExceed, Quota
from enforcer.notice import Ending
from gpushare.reasons import Reason


class Eyes(Protocol):
    """A fresh look at one container's use of its GPU."""

    def holders(self, quota: Quota) -> tuple[Holder, ...] | None:
        """Who in the container holds how much now; ``None`` when blind."""


class Pursuit:
    """One container over its quota on one GPU.

    Args:
        quota: of the container.
        eyes: look again.
        grip: takes hold of processes.
        ladder: ends them.
        leads: whether the end of a process is the end of all in its container.
        rounds: how often to go after new processes.
    """

    def __init__(
        self, quota: Quota, eyes: Eyes, grip: Grip, ladder: Ladder, leads: Callable[[int], bool], rounds: int
    ) -> None:
        self._quota, self._eyes, self._grip, self._ladder = quota, eyes, grip, ladder
        self._leads, self._rounds = leads, rounds

    def run(self, stack: ExitStack, victims: list[Victim], endings: list[Ending]) -> Reason:
        """Go after these, and after what they forked meanwhile, until the container is within its quota.

        Returns why it stopped; what becomes of each process is added to ``endings``.
        """
        quota, inode = self._quota, victims[0].holder.identity.cgroup_inode
        for _ in range(self._rounds):
            for victim in victims:
                why = self._end_one(victim, endings)
                if why is not None:
                    return why
                victim.handle.close()  # there may be more processes than descriptors
            left = self._eyes.holders(quota)
            if left is None or total(left) <= quota.ceiling_mib:
                return Reason.NVML_UNAVAILABLE if left is None else Reason.BACK_UNDER_QUOTA
            # A container made again meanwhile has another cgroup, and is another episode.
            same = [holder for holder in targets(quota, left) if holder.identity.cgroup_inode == inode]
            victims, gone = self._grip.take(stack, quota, same, self._ladder.hung)
            endings += gone
            if not victims:
                return Reason.IDENTITY_CHANGED
        return Reason.LIMIT_EXCEEDED

    def _end_one(self, victim: Victim, endings: list[Ending]) -> Reason | None:
        """Check once more and act; ``None`` to go on with the next, else why to stop."""
        quota = self._quota
        holders = self._eyes.holders(quota)
        if holders is None:
            return Reason.NVML_UNAVAILABLE
        begun_on_all = quota.on_exceed is OnExceed.KILL_CONTAINER and any(ending.touched for ending in endings)
        if total(holders) <= quota.ceiling_mib and not begun_on_all:
            if victim.handle.ended():
                endings.append(deeds.ending(victim.holder, Reason.GONE))
            return Reason.BACK_UNDER_QUOTA
        why = self._grip.mistaken(quota, victim)
        if why is None and not _concerns(quota, victim, holders):
            return None  # it let go of the GPU; the next round finds who holds what it held
        if why is None:
            self._act(victim, holders, endings)
            return Reason.TERMINATE_FAILED if endings[-1].result is Reason.TERMINATE_FAILED else None
        if why is Reason.GONE:
            endings.append(deeds.ending(victim.holder, why))
        return None

    def _act(self, victim: Victim, holders: Sequence[Holder], endings: list[Ending]) -> None:
        """Do what it takes, and add what came of it, whatever goes wrong on the way."""
        steps: list[str] = []
        result = Reason.INTERNAL
        with ExitStack() as stack:
            kin = self._kin(stack, victim, holders)
            try:
                result = self._ladder.climb(victim, self._quota.gpu, steps, kin)
            finally:
                endings.append(deeds.ending(victim.holder, result, *steps))
                endings += [
                    deeds.ending(each.holder, Reason.KILLED, *said) for each, said in kin if each.handle.ended()
                ]

    def _kin(self, stack: ExitStack, victim: Victim, holders: Sequence[Holder]) -> list[Kin]:
        """Take hold of those that the kernel kills with this one: all have to be released before any signal."""
        if not self._leads(victim.holder.identity.pid):
            return []
        beside = [each for each in holders if each.identity != victim.holder.identity]
        return [(each, []) for each in self._grip.take(stack, self._quota, beside, self._ladder.hung)[0]]


def _concerns(quota: Quota, victim: Victim, holders: Sequence[Holder]) -> bool:
    """Whether a process still is one of those to end: it holds some of the GPU, or the whole container has to go."""
    holding = any(holder.identity == victim.holder.identity for holder in holders)
    return holding or quota.on_exceed is OnExceed.KILL_CONTAINER
