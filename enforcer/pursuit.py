"""Going after a container's processes, round by round, until it is within its quota.

Before each process it is looked again: whether the container still is over, and who that process is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from enforcer import deeds
from enforcer.attribute import Identity, Owner
from enforcer.family import Member, first_of
from enforcer.hold import Grip, Victim
from enforcer.judge import Holder, targets, total
from enforcer.ladder import Kin, Ladder
from enforcer.model import OnExceed, Quota
from enforcer.notice import NOT_DONE, Ending
from gpushare.reasons import Reason


class Eyes(Protocol):
    """A fresh look at one container's use of its GPU."""

    def holders(self, quota: Quota) -> tuple[Holder, ...] | None:
        """Who in the container holds how much now; ``None`` when blind."""


@dataclass(frozen=True, slots=True)
class Kinship:
    """Whose end is whose: whether that of a process is that of all in its namespace, and who is in a container."""

    leads: Callable[[int], bool]
    family: Callable[[Owner], Sequence[Member]]


class Pursuit:
    """One container over its quota on one GPU.

    Args:
        quota: of the container.
        eyes: look again.
        grip: takes hold of processes.
        ladder: ends them.
        kinship: whose end is whose.
        rounds: how often to go after new processes.
    """

    def __init__(self, quota: Quota, eyes: Eyes, grip: Grip, ladder: Ladder, kinship: Kinship, rounds: int) -> None:
        self._quota, self._eyes, self._grip, self._ladder = quota, eyes, grip, ladder
        self._leads, self._family, self._rounds = kinship.leads, kinship.family, rounds
        self._others: Mapping[Identity, Holder] = {}
        """Who else was in the container when its first process was looked for."""

    def first(self, stack: ExitStack, victims: Sequence[Victim]) -> list[Victim]:
        """Take hold of the process whose end is the end of the whole container, where all of it has to go.

        Returns none, or one. Then these victims, who die with it, are let go of: there may be more processes than
        descriptors.
        """
        quota, one = self._quota, victims[0].holder.identity
        if quota.on_exceed is not OnExceed.KILL_CONTAINER or one.owner is None:
            return []
        family = self._family(one.owner)
        found = first_of(family, one.cgroup_inode)
        if found is None:
            return []
        used = {each.holder.identity: each.holder for each in victims}
        chief = used.get(found.identity, Holder(found.identity, 0))
        taken, _ = self._grip.take(stack, quota, [chief], self._ladder.hung)
        for each in victims if taken else ():
            each.handle.close()
        self._others = {each.identity: Holder(each.identity, 0) for each in family if each.identity != found.identity}
        return taken

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
            return Reason.TERMINATE_FAILED if self._act(victim, endings) is Reason.TERMINATE_FAILED else None
        if why is Reason.GONE:
            endings.append(deeds.ending(victim.holder, why))
        return None

    def _act(self, victim: Victim, endings: list[Ending]) -> Reason:
        """Do what it takes, and add what came of it, whatever goes wrong on the way."""
        steps: list[str] = []
        asked: dict[Identity, tuple[Holder, list[str]]] = {}
        leads, result = self._leads(victim.holder.identity.pid), Reason.INTERNAL
        try:
            result = self._ladder.climb(
                victim, self._quota.gpu, steps, lambda: self._kin(victim, asked) if leads else ()
            )
        finally:
            endings.append(deeds.ending(victim.holder, result, *steps))
            endings += self._beside(victim, asked) if leads else ()
        return result

    def _kin(self, victim: Victim, asked: dict[Identity, tuple[Holder, list[str]]]) -> Iterator[Kin]:
        """Take hold of those that the kernel kills with this one: all have to be released before any signal.

        One after the other, and again until nobody is new; ``asked``: who had a turn, added to.
        """
        asked.setdefault(victim.holder.identity, (victim.holder, []))
        for _ in range(self._rounds):
            holders = self._eyes.holders(self._quota) or ()
            fresh = [each for each in holders if each.identity not in asked]
            for holder in fresh:
                asked[holder.identity] = holder, []
                with ExitStack() as stack:
                    taken, _ = self._grip.take(stack, self._quota, [holder], self._ladder.hung)
                    yield from ((each, asked[holder.identity][1]) for each in taken)
            if not fresh:
                return

    def _beside(self, victim: Victim, asked: Mapping[Identity, tuple[Holder, list[str]]]) -> Iterator[Ending]:
        """Say what became of those that die with this one."""
        ended = victim.handle.ended()
        beside = {**{one: (holder, list[str]()) for one, holder in self._others.items()}, **asked}
        for holder, said in (found for one, found in beside.items() if one != victim.holder.identity):
            if ended:
                yield deeds.ending(holder, Reason.KILLED, *said, f"with {victim.holder.identity.pid}")
            elif said:
                refused = said[-1].endswith(NOT_DONE)
                yield deeds.ending(holder, Reason.TERMINATE_FAILED if refused else Reason.CLIENT_TERMINATED, *said)


def _concerns(quota: Quota, victim: Victim, holders: Sequence[Holder]) -> bool:
    """Whether a process still is one of those to end: it holds some of the GPU, or the whole container has to go."""
    holding = any(holder.identity == victim.holder.identity for holder in holders)
    return holding or quota.on_exceed is OnExceed.KILL_CONTAINER
