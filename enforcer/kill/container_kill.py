"""Going after a container's processes, round by round, until it is within its quota.

Before each process it is looked again: whether the container still is over, and who that process is. Those of one round
are released one by one, looked at once more where a signal would be the first thing done to them, and then signalled
and waited for together. A container that puts new processes in place of
those that were ended is not raced: where it has a first process, that is the one to end.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import ContainerProcess, init_process
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit import kill_records
from enforcer.audit.kill_records import NOT_DONE, ProcessOutcome, touched
from enforcer.detection.targets import select_victims
from enforcer.kill.pidfd_target import PidfdPinner, Victim
from enforcer.kill.process_kill import STOPPED, KillTimeouts, Kin, ProcessKill, ProcessKiller
from enforcer.kill.recheck import Rechecker
from enforcer.quota.types import OnExceed, Quota
from gpushare.reasons import Reason

Asked = dict[Identity, tuple[ProcessUsage, list[str]]]
"""Who had a turn to be released because another one is to be signalled, and what was done to each."""


@dataclass(frozen=True, slots=True)
class PidNamespaceLookup:
    """Whose end is whose: whether that of a process is that of all in its namespace, and who is in a container."""

    leads: Callable[[int], bool]
    family: Callable[[ContainerRef], Sequence[ContainerProcess]]

    def first(self, one: Identity) -> ContainerProcess | None:
        """Find the process whose end is the end of all in the container of this one."""
        return None if one.owner is None else init_process(self.family(one.owner), one.cgroup_inode)


class ContainerKill:
    """One container over its quota on one GPU.

    Args:
        quota: of the container.
        outlook: look again, and ask again what it may hold.
        grip: takes hold of processes.
        ladder: ends them.
        kinship: whose end is whose.
        patience: how often to go after new processes, and for how long.
    """

    def __init__(
        self,
        quota: Quota,
        outlook: Rechecker,
        grip: PidfdPinner,
        ladder: ProcessKiller,
        kinship: PidNamespaceLookup,
        patience: KillTimeouts,
    ) -> None:
        self._quota, self._outlook, self._grip, self._ladder = quota, outlook, grip, ladder
        self._kinship, self._rounds = kinship, patience.rounds
        self._until = time.monotonic() + patience.total
        self._seen: frozenset[Identity] | None = None
        """Who held memory when the first of them was looked at again."""
        self.respawned: tuple[ProcessUsage, ...] = ()
        """Who holds memory now, where new processes came and the whole container can be ended by its first one."""
        self._others: Mapping[Identity, ProcessUsage] = {}
        """Who else was in the container when its first process was looked for."""

    def first(self, stack: ExitStack, victims: Sequence[Victim]) -> list[Victim]:
        """Take hold of the process whose end is the end of the whole container, where all of it has to go.

        Returns none, or one. Then these victims, who die with it, are let go of: there may be more processes than
        descriptors.
        """
        quota, one = self._quota, victims[0].holder.identity
        if quota.on_exceed is not OnExceed.KILL_CONTAINER or one.owner is None:
            return []
        family = self._kinship.family(one.owner)
        found = init_process(family, one.cgroup_inode)
        if found is None:
            return []
        used = {each.holder.identity: each.holder for each in victims}
        chief = used.get(found.identity, ProcessUsage(found.identity, 0))
        taken, _ = self._grip.take(stack, quota, [chief], self._ladder.hung)
        for each in victims if taken else ():
            each.handle.close()
        self._others = {
            each.identity: ProcessUsage(each.identity, 0) for each in family if each.identity != found.identity
        }
        return taken

    def run(self, stack: ExitStack, victims: list[Victim], endings: list[ProcessOutcome]) -> Reason:
        """Go after these, and after what they forked meanwhile, until the container is within its quota.

        Returns why it stopped; what becomes of each process is added to ``endings``.
        """
        quota, inode = self._quota, victims[0].holder.identity.cgroup_inode
        for _ in range(self._rounds):
            why = self._end(victims, endings)
            if why is not None:
                return why
            left = self._outlook.holders(quota)
            if (why := self._outlook.let_be(quota, left)) is not None:
                return why
            # A container made again meanwhile has another cgroup, and is another episode.
            chosen = select_victims(self._outlook.allowed(quota), left or ())
            same = [holder for holder in chosen if holder.identity.cgroup_inode == inode]
            if self._respawns(same) or self._late():
                return Reason.LIMIT_EXCEEDED
            victims, gone = self._grip.take(stack, quota, same, self._ladder.hung)
            endings += gone
            if not victims:
                return Reason.IDENTITY_CHANGED
        return Reason.LIMIT_EXCEEDED

    def _late(self) -> bool:
        return time.monotonic() >= self._until

    def _respawns(self, left: Sequence[ProcessUsage]) -> bool:
        """Whether these came in the place of others, and it takes the end of the whole container."""
        fresh = [each.identity for each in left if each.identity not in (self._seen or ())]
        if fresh and self._quota.on_exceed is OnExceed.KILL and self._kinship.first(fresh[0]) is not None:
            self.respawned = tuple(left)
        return bool(self.respawned)

    def _end(self, victims: Sequence[Victim], endings: list[ProcessOutcome]) -> Reason | None:
        """Release one after the other, then signal all; ``None`` to go on, else why to stop.

        Add what came of each, whatever goes wrong on the way.
        """
        group: list[ProcessKill] = []
        asked: dict[Identity, Asked] = {}
        try:
            why = self._release(victims, group, endings)
            one_of_them = {each.victim.holder.identity: (each.victim.holder, each.steps) for each in group}
            for each in (each for each in group if self._kinship.leads(each.victim.holder.identity.pid)):
                asked[each.victim.holder.identity] = theirs = dict(one_of_them)
                each.kin = partial(self._kin, theirs)
            self._ladder.climb(
                group, self._quota.gpu, lambda ready: self._check(ready, begun=any_action_taken(endings, group, asked))
            )
        finally:
            endings += self._became(group, asked)
            for victim in victims:
                victim.handle.close()  # there may be more processes than descriptors
        results = {each.result for each in group if each.spared or each.result is Reason.TERMINATE_FAILED}
        return next((each for each in (Reason.TERMINATE_FAILED, *STOPPED) if each in results), why)

    def _release(
        self, victims: Sequence[Victim], group: list[ProcessKill], endings: list[ProcessOutcome]
    ) -> Reason | None:
        """Check each once more and have it released; added to the group are those to be signalled, or refused.

        Returns why to stop. Then of the group only those are left to whom something was done.
        """
        why: Reason | None = None
        holders: Sequence[ProcessUsage] | None = ()
        for victim in victims:
            holders = self._look()
            why = self._why_stop(victim, holders, group, endings)
            if why is None and self._is_right(victim, holders or (), endings):
                group.append(ProcessKill(victim))
                why = None if self._ladder.release(group[-1], self._quota.gpu) else Reason.TERMINATE_FAILED
            if why is not None or (group and self._late()):
                break
        group[:] = [each for each in group if why is None or each.result or touched(each.steps)]
        return why

    def _check(self, ready: Sequence[ProcessKill], *, begun: bool) -> None:
        """Look once more right before a first signal: MPS may have taken seconds over it. Tells whom to spare, and why.

        Who was released has to go on, and is not looked at: its work on the GPU is over, and it holds nothing.
        """
        untouched = [each for each in ready if not touched(each.steps) and not each.victim.handle.ended()]
        holders = self._outlook.holders(self._quota) if untouched else ()
        for each in untouched:
            each.result = self._let_be(holders, begun=begun) or self._grip.mistaken(self._quota, each.victim)
            if each.result is None and not self._concerns(each.victim, holders or ()):
                each.result = Reason.IDENTITY_CHANGED

    def _look(self) -> Sequence[ProcessUsage] | None:
        holders = self._outlook.holders(self._quota)
        if self._seen is None and holders is not None:
            self._seen = frozenset(each.identity for each in holders)
        return holders

    def _why_stop(
        self,
        victim: Victim,
        holders: Sequence[ProcessUsage] | None,
        group: Sequence[ProcessKill],
        endings: list[ProcessOutcome],
    ) -> Reason | None:
        """Whether the container is to be let be now; one that is ended whole is not, once something was done to it."""
        why = self._let_be(holders, begun=any_action_taken(endings, group))
        if why is Reason.BACK_UNDER_QUOTA and victim.handle.ended():
            endings.append(kill_records.process_outcome(victim.holder, Reason.ALREADY_EXITED))
        return why

    def _let_be(self, holders: Sequence[ProcessUsage] | None, *, begun: bool) -> Reason | None:
        whole = self._quota.on_exceed is OnExceed.KILL_CONTAINER and begun
        return None if whole and holders is not None else self._outlook.let_be(self._quota, holders)

    def _is_right(self, victim: Victim, holders: Sequence[ProcessUsage], endings: list[ProcessOutcome]) -> bool:
        """Whether it still is who it was, and one of those to end; else the next round finds who is."""
        why = self._grip.mistaken(self._quota, victim)
        if why is Reason.ALREADY_EXITED:
            endings.append(kill_records.process_outcome(victim.holder, why))
        return why is None and self._concerns(victim, holders)

    def _concerns(self, victim: Victim, holders: Sequence[ProcessUsage]) -> bool:
        """Whether a process still is one of those to end: by what it holds now, or the whole container has to go."""
        quota = self._outlook.allowed(self._quota)
        chosen = any(holder.identity == victim.holder.identity for holder in select_victims(quota, holders))
        return chosen or quota.on_exceed is OnExceed.KILL_CONTAINER

    def _became(self, group: Sequence[ProcessKill], asked: Mapping[Identity, Asked]) -> Iterator[ProcessOutcome]:
        """Say what became of each, and of those that die with it; of who was spared nothing did."""
        named = {each.victim.holder.identity for each in group if not each.spared}
        for each in group:
            if not each.spared:
                yield kill_records.process_outcome(each.victim.holder, each.result or Reason.INTERNAL, *each.steps)
            if (theirs := asked.get(each.victim.holder.identity)) is not None:
                beside = self._beside(each.victim, theirs, named)
                yield from (one for one in beside if one.touched or not each.spared)

    def _kin(self, asked: Asked) -> Iterator[Kin]:
        """Take hold of those that the kernel kills with one: all have to be released before any signal.

        One after the other, and again until nobody is new; ``asked``: who had a turn, added to.
        """
        for _ in range(self._rounds):
            holders = self._outlook.holders(self._quota) or ()
            fresh = [each for each in holders if each.identity not in asked]
            for holder in fresh:
                asked[holder.identity] = holder, []
                with ExitStack() as stack:
                    taken, _ = self._grip.take(stack, self._quota, [holder], self._ladder.hung)
                    yield from ((each, asked[holder.identity][1]) for each in taken)
            if not fresh:
                return

    def _beside(self, victim: Victim, asked: Asked, named: Collection[Identity]) -> Iterator[ProcessOutcome]:
        """Say what became of those that die with this one."""
        ended = victim.handle.ended()
        beside = {**{one: (holder, list[str]()) for one, holder in self._others.items()}, **asked}
        for holder, said in (found for one, found in beside.items() if one not in named):
            if ended:
                yield kill_records.process_outcome(holder, Reason.KILLED, *said, f"with {victim.holder.identity.pid}")
            elif said:
                refused = said[-1].endswith(NOT_DONE)
                yield kill_records.process_outcome(
                    holder, Reason.TERMINATE_FAILED if refused else Reason.CLIENT_TERMINATED, *said
                )


def any_action_taken(
    endings: Iterable[ProcessOutcome],
    group: Iterable[ProcessKill],
    asked: Mapping[Identity, Asked] = MappingProxyType({}),
) -> bool:
    """Whether anything was done to anybody, in this round or before it."""
    said = [each.steps for each in group] + [steps for theirs in asked.values() for _, steps in theirs.values()]
    return any(each.touched for each in endings) or any(touched(steps) for steps in said)
