"""The kill of one container, phase by phase.

The order is the safety: pin the processes by pidfd, then recheck them; write INTENT and wait until it is durable;
recheck, because the disk may have taken seconds; terminate the MPS clients, because killing a live one can harm its
neighbours; recheck the processes to which nothing was done, because MPS may have taken seconds; then SIGTERM, wait,
SIGKILL, wait; report what came of it.

This repeats, round by round, until the container is within its kill threshold. A container that starts new processes in
place of the killed ones is not raced: where it has a first process, that is the one to kill; else all of its processes.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import ProcessTable, init_process
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit.kill_records import NOOP_STEPS, ProcessOutcome, process_outcome
from enforcer.detection.targets import select_targets
from enforcer.detection.types import KillDecision
from enforcer.kill.pidfd_target import CANCELLED, KillTarget, PidfdPinner, PinnedProcess
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.kill.recheck import Rechecker
from enforcer.kill.report import KillReporter, KillResult, PendingKill, summarize
from enforcer.quota.types import OnExceed
from gpushare.reasons import Reason


class ContainerKill:
    """One kill of a container over its quota on one GPU.

    Args:
        decision: the kill decision.
        processes: finds the container's first process.
        pinner: pins processes.
        rechecker: samples the usage again, and reads the quota again.
        killer: terminates clients and sends signals.
        reporter: writes INTENT and OUTCOME.
        timeouts: seconds to wait, and rounds.
    """

    _intent: int
    """Sequence number of the INTENT record."""
    _one_by_one: bool
    """Whether all processes of the container are to be killed and none of them ends the others."""
    _group: list[PinnedProcess]
    """This round's processes to signal, or that MPS refused to terminate."""
    _leaders: list[PinnedProcess]
    """Of those, the ones whose pid namespace ends with them."""
    _children: dict[Identity, KillTarget]
    """The GPU processes that may end with a leader: MPS has to have terminated their clients before a signal."""

    def __init__(
        self,
        decision: KillDecision,
        processes: ProcessTable,
        pinner: PidfdPinner,
        rechecker: Rechecker,
        killer: ProcessKiller,
        reporter: KillReporter,
        timeouts: KillTimeouts,
    ) -> None:
        self._decision, self._quota, self._timeouts = decision, decision.quota, timeouts
        self._processes, self._pinner, self._rechecker = processes, pinner, rechecker
        self._killer, self._reporter = killer, reporter
        self._until = time.monotonic() + timeouts.total
        self._whole = decision.quota.on_exceed is OnExceed.KILL_CONTAINER
        self._outcomes = list[ProcessOutcome]()
        self._first_sample: frozenset[Identity] | None = None
        """The container's GPU processes at the first recheck after INTENT."""
        self._others = dict[Identity, KillTarget]()
        """The other processes of the container when its first process was pinned."""
        self._group, self._leaders, self._children = [], [], {}
        self._informed = set[ContainerRef]()
        self.respawned: tuple[ProcessUsage, ...] = ()
        """The GPU processes now, if new ones have replaced the killed."""

    def run(self) -> KillResult:
        """Kill, as far as that is still right, and report it. Blocks for seconds."""
        with ExitStack() as stack:
            targets, exited = self._pin(stack, self._decision.targets)
            if not targets:
                return KillResult(self._reason_for_none(exited), tuple(exited))
            if (reason := self._recheck_container(targets)) is not None:
                return KillResult(reason)
            init = self._pin_init_process(stack, targets)
            self._one_by_one = self._whole and not init
            usages = [each.usage for each in targets]
            intent = self._reporter.intent(self._decision, usages, [each.usage for each in init])
            if intent is None:
                return KillResult(Reason.AUDIT_UNWRITABLE)
            self._intent = intent
            try:
                result = summarize(self._run_rounds(stack, init or targets), self._outcomes)
            except BaseException:
                bug = KillResult(Reason.INTERNAL, tuple(self._outcomes))
                self._reporter.outcome(PendingKill(self._decision, intent, bug))
                raise
            self._reporter.outcome(PendingKill(self._decision, intent, result))
            return result

    def _pin(
        self, stack: ExitStack, usages: Sequence[ProcessUsage]
    ) -> tuple[list[PinnedProcess], list[ProcessOutcome]]:
        return self._pinner.pin(stack, self._quota, usages, self._killer.unkillable)

    def _reason_for_none(self, exited: Sequence[ProcessOutcome]) -> Reason:
        if any(each.identity in self._killer.unkillable for each in self._decision.targets):
            return Reason.UNKILLABLE
        return Reason.ALREADY_EXITED if exited else Reason.IDENTITY_CHANGED

    def _recheck_container(self, targets: Sequence[PinnedProcess]) -> Reason | None:
        """Return why not to kill; ``None``: the container is still over, and a target still uses the GPU."""
        usages = self._usages()
        if (reason := self._rechecker.reason_to_spare(self._quota, usages)) is not None:
            return reason
        using = {each.identity for each in usages or ()}
        return None if any(each.identity in using for each in targets) else Reason.IDENTITY_CHANGED

    def _pin_init_process(self, stack: ExitStack, targets: Sequence[PinnedProcess]) -> list[PinnedProcess]:
        """Pin the first process of a container that is killed whole; return it, or nothing.

        Then the targets, which end with it, are unpinned: there may be more processes than descriptors.
        """
        one = targets[0].identity
        if not self._whole or one.owner is None:
            return []
        everyone = self._processes.processes_of(one.owner)
        init = init_process(everyone, one.cgroup_inode)
        if init is None:
            return []
        used = {each.identity: each.usage for each in targets}
        pinned, _ = self._pin(stack, [used.get(init.identity, ProcessUsage(init.identity, 0))])
        for each in targets if pinned else ():
            each.handle.close()
        others = (each.identity for each in everyone if each.identity != init.identity)
        self._others = {each: KillTarget(ProcessUsage(each, 0)) for each in others}
        return pinned

    def _run_rounds(self, stack: ExitStack, targets: Sequence[PinnedProcess]) -> Reason:
        """Kill the targets, and what the container forked meanwhile, until it is within its kill threshold.

        Returns why it stopped.
        """
        inode = targets[0].identity.cgroup_inode
        for _ in range(self._timeouts.rounds):
            if (reason := self._run_round(stack, targets)) is not None:
                return reason
            usages = self._usages()
            if (reason := self._rechecker.reason_to_spare(self._quota, usages)) is not None:
                return reason
            # A container that was created again meanwhile has another cgroup, and its kill is another one.
            selected = [each for each in self._select(usages) if each.identity.cgroup_inode == inode]
            if self._respawns(selected) or self._is_late():
                return Reason.LIMIT_EXCEEDED
            targets, exited = self._pin(stack, selected)
            self._outcomes += exited
            if not targets:
                return Reason.IDENTITY_CHANGED
        return Reason.LIMIT_EXCEEDED

    def _run_round(self, stack: ExitStack, targets: Sequence[PinnedProcess]) -> Reason | None:
        """Terminate the clients one by one, then signal all; ``None`` to go on, else why to stop.

        Adds the outcome of each, whatever fails on the way.
        """
        self._group, self._leaders, self._children = [], [], {}
        try:
            reason = self._terminate_clients(targets)
            self._leaders = [each for each in self._group if self._processes.leads_namespace(each.identity.pid)]
            self._children = {each.identity: each for each in self._group}
            for number, seconds in ((signal.SIGTERM, self._timeouts.term), (signal.SIGKILL, self._timeouts.kill)):
                self._terminate_children()
                self._add_others(stack)
                self._recheck_group()
                self._say_why(_unfinished(self._group))
                self._killer.signal_and_wait(_unfinished(self._group), number, seconds)
            for each in _unfinished(self._group):
                self._killer.give_up(each)
        finally:
            self._outcomes += self._round_outcomes()
            for target in (*targets, *self._group):
                target.handle.close()  # there may be more processes than descriptors
        results = {each.result for each in self._group if each.spared or each.result is Reason.TERMINATE_FAILED}
        return next((each for each in (Reason.TERMINATE_FAILED, *CANCELLED) if each in results), reason)

    def _terminate_clients(self, targets: Sequence[PinnedProcess]) -> Reason | None:
        """Recheck each target and terminate its MPS client; return why to stop.

        If there is a reason, the group keeps only those that were refused or to which something was done.
        """
        reason: Reason | None = None
        for target in targets:
            usages = self._sample()
            reason = self._reason_to_spare(usages)
            if reason is None and self._is_target(target, usages):
                self._group.append(target)
                if not self._killer.terminate_mps_client(target, self._quota.gpu):
                    reason = Reason.TERMINATE_FAILED
            elif reason is Reason.BACK_UNDER_QUOTA and target.handle.ended():
                self._outcomes.append(process_outcome(target.usage, Reason.ALREADY_EXITED))
            if reason is not None or (self._group and self._is_late()):
                break
        self._group = [each for each in self._group if reason is None or each.result or each.acted_on]
        return reason

    def _add_others(self, stack: ExitStack) -> None:
        """Add the other processes of a container that is killed whole and has no first process: they start new ones."""
        if not self._one_by_one or not _unfinished(self._group):
            return
        one, known = self._group[0].identity, {each.identity for each in self._group}
        everyone = () if one.owner is None else self._processes.processes_of(one.owner)
        here = [each.identity for each in everyone if each.identity.cgroup_inode == one.cgroup_inode]
        new = [each for each in here if each not in known]
        if not new:
            return
        using = {each.identity: each for each in self._rechecker.processes(self._quota) or ()}
        pinned, _ = self._pin(stack, [using.get(each, ProcessUsage(each, 0)) for each in new])
        for client in (each for each in pinned if each.identity in using):
            self._killer.terminate_mps_client(client, self._quota.gpu)
        self._group += pinned

    def _say_why(self, processes: Sequence[PinnedProcess]) -> None:
        """Write into the status of each container, once, why it ends; before the signal, or it is too late."""
        containers = {each.identity.owner for each in processes if each.identity.owner is not None}
        for container in containers - self._informed:
            self._informed.add(container)
            self._reporter.ending(self._decision, self._intent, container)

    def _terminate_children(self) -> None:
        """Terminate the clients of the processes that end with a leader, one by one, until no new one appears.

        If MPS refuses one, no leader gets a signal.
        """
        leaders = _unfinished(self._leaders)
        for _ in range(self._timeouts.rounds if leaders else 0):
            usages = self._rechecker.processes(self._quota) or ()
            new = [each for each in usages if each.identity not in self._children]
            if not all(self._terminate_child(each) for each in new):
                for leader in leaders:
                    leader.finish(Reason.TERMINATE_FAILED)
                return
            if not new:
                return

    def _terminate_child(self, usage: ProcessUsage) -> bool:
        self._children[usage.identity] = KillTarget(usage)
        with ExitStack() as stack:
            pinned, _ = self._pin(stack, [usage])
            self._children |= {each.identity: each for each in pinned}
            return all(self._killer.terminate_mps_client(each, self._quota.gpu) for each in pinned)

    def _recheck_group(self) -> None:
        """Recheck the processes to which nothing was done, right before a signal; set the result of the spared ones.

        A process whose client was terminated is not rechecked: its work on the GPU is over, and it uses no memory.
        """
        untouched = [each for each in _unfinished(self._group) if not each.acted_on and not each.handle.ended()]
        if not untouched:
            return
        usages = self._usages()
        of_all = self._reason_to_spare(usages)
        for each in untouched:
            reason = of_all or self._pinner.identity_mismatch(self._quota, each)
            if reason is None and not self._is_selected(each, usages):
                reason = Reason.IDENTITY_CHANGED
            if reason is not None:
                each.finish(reason)

    def _sample(self) -> Sequence[ProcessUsage] | None:
        usages = self._usages()
        if self._first_sample is None and usages is not None:
            self._first_sample = frozenset(each.identity for each in usages)
        return usages

    def _usages(self) -> tuple[ProcessUsage, ...] | None:
        overdrawn = self._decision.overdrawn and not self._has_acted()
        return self._rechecker.processes(self._quota, overdrawn=overdrawn)

    def _reason_to_spare(self, usages: Sequence[ProcessUsage] | None) -> Reason | None:
        """Return why to spare the container now; a whole container is not spared once something was done to it."""
        if self._whole and usages is not None and self._has_acted():
            return None
        return self._rechecker.reason_to_spare(self._quota, usages)

    def _has_acted(self) -> bool:
        """Return whether anything was done to a process, in this round or before it."""
        targets: list[KillTarget] = [*self._group, *self._children.values()]
        return any(each.acted_on for each in self._outcomes) or any(each.acted_on for each in targets)

    def _is_target(self, target: PinnedProcess, usages: Sequence[ProcessUsage] | None) -> bool:
        """Return whether a process still is the selected one and is selected now; the next round finds others."""
        mismatch = self._pinner.identity_mismatch(self._quota, target)
        if mismatch is Reason.ALREADY_EXITED:
            self._outcomes.append(process_outcome(target.usage, mismatch))
        return mismatch is None and self._is_selected(target, usages)

    def _is_selected(self, target: PinnedProcess, usages: Sequence[ProcessUsage] | None) -> bool:
        return self._whole or any(each.identity == target.identity for each in self._select(usages))

    def _select(self, usages: Sequence[ProcessUsage] | None) -> Sequence[ProcessUsage]:
        return select_targets(self._rechecker.current_quota(self._quota), usages or ())

    def _respawns(self, selected: Sequence[ProcessUsage]) -> bool:
        """Return whether new processes replaced the killed ones, so that the whole container is the one to kill."""
        if not self._whole and any(each.identity not in (self._first_sample or ()) for each in selected):
            self.respawned = tuple(selected)
        return bool(self.respawned)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._until

    def _round_outcomes(self) -> Iterator[ProcessOutcome]:
        """Return what came of each process of this round; of the spared ones nothing did."""
        done = [each for each in self._group if not each.spared]
        for each in done:
            yield process_outcome(each.usage, each.result or Reason.INTERNAL, *each.steps)
        ended = next((each for each in self._leaders if each.handle.ended()), None)
        all_spared = all(each.spared for each in self._leaders)
        named = {each.identity for each in done}
        for child in (each for each in {**self._others, **self._children}.values() if each.identity not in named):
            if ended is not None:
                yield process_outcome(child.usage, Reason.KILLED, *child.steps, f"with {ended.identity.pid}")
            elif child.acted_on or (child.steps and not all_spared):
                failed = child.steps[-1].endswith(NOOP_STEPS)
                yield process_outcome(
                    child.usage, Reason.TERMINATE_FAILED if failed else Reason.CLIENT_TERMINATED, *child.steps
                )


def _unfinished(processes: Sequence[PinnedProcess]) -> list[PinnedProcess]:
    return [each for each in processes if each.result is None]
