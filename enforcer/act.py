"""Ending processes, so that it hits nobody else and is always on record.

The order is the safety: take hold by pidfd, then check who it is; write down what is going to happen and wait until
that is durable; check again, because the disk may have taken seconds; let MPS release the client, because killing a
live one can harm its neighbours; then SIGTERM, wait, SIGKILL, wait; write down what became of it.
"""

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from enforcer import deeds, notice
from enforcer.attribute import Attributor, Identity, Owner
from enforcer.audit import KillLog
from enforcer.judge import Holder, Verdict, targets, total
from enforcer.model import OnExceed, Quota
from enforcer.notice import Ending, Sink
from enforcer.proc import PidHandle, leads_namespace
from enforcer.record import Kind
from gpushare.errors import MpsError, RecordError
from gpushare.reasons import Reason

log = structlog.get_logger()

INIT: Final = 1
REFUSALS: Final = 3
"""Times that MPS may refuse to let go of a client before signals have to do."""
MAX_REFUSED: Final = 1024
_STEPS: Final[dict[bool | Reason | None, str]] = {
    True: "terminate_client", False: "terminate_client refused", Reason.CONTROL_BLOCKED: str(Reason.CONTROL_BLOCKED),
}  # fmt: skip


class MpsClient(Protocol):
    """The MPS daemons of this node, as far as ending one of their clients goes."""

    def terminate(self, pid: int, gpu: str | None = None) -> bool | None:
        """Make the server of that GPU (``None``: of whichever serves it) let go of a client.

        Returns:
            True where it has, false where it refused, ``None`` where the process is no MPS client.

        Raises:
            MpsError: nobody answered; taken as a refusal. ``ControlBlocked``: nor at the third attempt.
        """


class NoMps:
    """No daemon on this node: nobody is a client."""

    def terminate(self, pid: int, gpu: str | None = None) -> None:
        """Say that this process is no client."""


class Eyes(Protocol):
    """A fresh look at one container's use of its GPU."""

    def holders(self, quota: Quota) -> tuple[Holder, ...] | None:
        """Who in the container holds how much now; ``None`` when blind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds, after SIGTERM and after SIGKILL, and how often to go after new processes."""

    term: float = 2.0
    kill: float = 5.0
    rounds: int = 5


@dataclass(frozen=True, slots=True)
class Victim:
    """A process we hold on to, and what it held when it was judged."""

    holder: Holder
    handle: PidHandle


Kin = tuple[Victim, list[str]]
"""A process that dies with another one, and what was done to it."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it. ``endings`` are the processes that were gone or acted upon."""

    reason: Reason
    endings: tuple[Ending, ...] = ()

    @property
    def acted(self) -> bool:
        """Whether anything was done to anybody."""
        return any(ending.touched for ending in self.endings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What acting needs of the world."""

    eyes: Eyes
    attributor: Attributor
    kill_log: KillLog
    mps: MpsClient
    sink: Sink
    open_handle: Callable[[int], PidHandle | None] = PidHandle.open
    leads: Callable[[int], bool] = leads_namespace
    """Whether the end of a process is the end of all in its container."""


class Executor:
    """Carries out KILL verdicts. Safe to use from several threads, each with a verdict of its own."""

    def __init__(self, node: str, tools: Tools, patience: Patience | None = None) -> None:
        self._node, self._tools, self._patience = node, tools, patience or Patience()
        self._hung: set[Identity] = set()
        self._refused: Counter[Identity] = Counter()
        """Processes that SIGKILL did not end: it stays pending, so they are not signalled again."""
        self._owed: deque[tuple[Kind, dict[str, Any]]] = deque()

    def carry_out(self, verdict: Verdict) -> Result:
        """End the processes of a KILL verdict, as far as that is still right. Blocks for seconds."""
        with ExitStack() as stack:
            victims, gone = self._hold(stack, verdict.quota, verdict.targets)
            if not victims:
                return Result(self._why_nobody(verdict, gone), tuple(gone))
            if (why := self._reason_to_spare(verdict.quota, victims)) is not None:
                return Result(why)
            try:
                intent = self._tools.kill_log.append(
                    Kind.INTENT, deeds.intent(self._node, verdict, [victim.holder for victim in victims])
                )
            except RecordError as error:
                log.critical("nobody ended", reason=str(Reason.RECORD_UNWRITABLE), error=error.message)
                self._tools.sink.notify(notice.unrecorded(verdict))
                return Result(Reason.RECORD_UNWRITABLE)
            endings: list[Ending] = []
            try:
                result = _result(self._end(stack, verdict.quota, victims, endings), endings)
            except BaseException:
                self._close(verdict, intent.seq, Result(Reason.INTERNAL, tuple(endings)))
                raise
            self._close(verdict, intent.seq, result)
            return result

    def catch_up(self) -> None:
        """Write the answers to INTENTs that could not be written in their time. One thread's business."""
        while self._owed:
            try:
                self._tools.kill_log.append(*self._owed[0])
            except RecordError:
                return
            self._owed.popleft()

    def _why_nobody(self, verdict: Verdict, gone: Sequence[Ending]) -> Reason:
        if any(holder.identity in self._hung for holder in verdict.targets):
            return Reason.UNKILLABLE
        return Reason.GONE if gone else Reason.IDENTITY_CHANGED

    def _close(self, verdict: Verdict, intent: int, result: Result) -> None:
        """Write what became of an INTENT, and tell the owner."""
        kind = Kind.OUTCOME if result.endings or result.reason is Reason.INTERNAL else Kind.ABORTED
        fields = {**deeds.about(self._node, verdict.quota), "intent": intent, "result": str(result.reason)}
        if result.endings:
            fields |= {"targets": [deeds.shown(ending) for ending in result.endings], "ended": len(result.endings)}
        try:
            head = self._tools.kill_log.append(kind, fields)
        except RecordError as error:
            # The deed is done and its INTENT is durable; should we end before we can, the next start answers it.
            self._owed.append((kind, fields))
            log.critical(
                "outcome not recorded", reason=str(Reason.RECORD_UNWRITABLE), intent=intent, error=error.message
            )
            head = self._tools.kill_log.head
        self._tools.sink.notify(notice.ended(verdict, result.reason, result.endings, head))

    def _hold(self, stack: ExitStack, quota: Quota, holders: Sequence[Holder]) -> tuple[list[Victim], list[Ending]]:
        """Take hold of processes and check each: those that are still who they were, and those that have ended.

        Where no more can be held at once, the rest is left for the next round.
        """
        victims: list[Victim] = []
        gone: list[Ending] = []
        for holder in holders:
            if holder.identity in self._hung:
                continue
            try:
                handle = self._tools.open_handle(holder.identity.pid)
            except OSError as error:
                log.warning("process cannot be held", reason=str(Reason.INTERNAL), error=str(error))
                break
            if handle is None:
                gone.append(deeds.ending(holder, Reason.GONE))
                continue
            victim = Victim(holder, stack.enter_context(handle))
            why = self._mistaken(quota, victim)
            if why is None:
                victims.append(victim)
            elif why is Reason.GONE:
                gone.append(deeds.ending(holder, why))
            else:
                log.warning("process spared", reason=str(why), pid=holder.identity.pid, container=quota.container)
        return victims, gone

    def _mistaken(self, quota: Quota, victim: Victim) -> Reason | None:
        """Why this must not be touched; ``None`` where it is the very process that was judged, and of this container.

        What /proc says is only then about the process we hold if that one is still there afterwards.
        """
        identity = self._tools.attributor.identify(victim.holder.identity.pid)
        if identity is None or victim.handle.ended():
            return Reason.GONE
        if protected(identity):
            return Reason.PROTECTED
        if identity != victim.holder.identity or identity.owner != Owner(quota.pod_uid, quota.container_id or ""):
            return Reason.IDENTITY_CHANGED
        return None

    def _reason_to_spare(self, quota: Quota, victims: Sequence[Victim]) -> Reason | None:
        """Look again; ``None`` where the container is still over and one of these still holds some of it."""
        holders = self._tools.eyes.holders(quota)
        if holders is None:
            return Reason.NVML_UNAVAILABLE
        if total(holders) <= quota.ceiling_mib:
            return Reason.BACK_UNDER_QUOTA
        holding = {holder.identity for holder in holders}
        return None if any(victim.holder.identity in holding for victim in victims) else Reason.IDENTITY_CHANGED

    def _end(self, stack: ExitStack, quota: Quota, victims: list[Victim], endings: list[Ending]) -> Reason:
        """Go after these, and after what they forked meanwhile, until the container is within its quota.

        Returns why it stopped; what becomes of each process is added to ``endings``.
        """
        inode = victims[0].holder.identity.cgroup_inode
        for _ in range(self._patience.rounds):
            for victim in victims:
                why = self._end_one(quota, victim, endings)
                if why is not None:
                    return why
                victim.handle.close()  # there may be more processes than descriptors
            left = self._tools.eyes.holders(quota)
            if left is None or total(left) <= quota.ceiling_mib:
                return Reason.NVML_UNAVAILABLE if left is None else Reason.BACK_UNDER_QUOTA
            # A container made again meanwhile has another cgroup, and is another episode.
            same = [holder for holder in targets(quota, left) if holder.identity.cgroup_inode == inode]
            victims, gone = self._hold(stack, quota, same)
            endings += gone
            if not victims:
                return Reason.IDENTITY_CHANGED
        return Reason.LIMIT_EXCEEDED

    def _end_one(self, quota: Quota, victim: Victim, endings: list[Ending]) -> Reason | None:
        """Check once more and act; ``None`` to go on with the next, else why to stop."""
        holders = self._tools.eyes.holders(quota)
        if holders is None:
            return Reason.NVML_UNAVAILABLE
        begun_on_all = quota.on_exceed is OnExceed.KILL_CONTAINER and any(ending.touched for ending in endings)
        if total(holders) <= quota.ceiling_mib and not begun_on_all:
            if victim.handle.ended():
                endings.append(deeds.ending(victim.holder, Reason.GONE))
            return Reason.BACK_UNDER_QUOTA
        why = self._mistaken(quota, victim)
        if why is None and not _concerns(quota, victim, holders):
            return None  # it let go of the GPU; the next round finds who holds what it held
        if why is None:
            self._ladder(victim, quota, holders, endings)
            return Reason.TERMINATE_FAILED if endings[-1].result is Reason.TERMINATE_FAILED else None
        if why is Reason.GONE:
            endings.append(deeds.ending(victim.holder, why))
        return None

    def _ladder(self, victim: Victim, quota: Quota, holders: Sequence[Holder], endings: list[Ending]) -> None:
        """Do what it takes, and add what came of it, whatever goes wrong on the way."""
        steps: list[str] = []
        result = Reason.INTERNAL
        with ExitStack() as stack:
            kin = self._kin(stack, victim, quota, holders)
            try:
                result = self._climb(victim, quota.gpu, steps, kin)
            finally:
                endings.append(deeds.ending(victim.holder, result, *steps))
                endings += [
                    deeds.ending(each.holder, Reason.KILLED, *said) for each, said in kin if each.handle.ended()
                ]

    def _kin(self, stack: ExitStack, victim: Victim, quota: Quota, holders: Sequence[Holder]) -> list[Kin]:
        """Take hold of those that the kernel kills with this one: all have to be released before any signal."""
        if not self._tools.leads(victim.holder.identity.pid):
            return []
        beside = [each for each in holders if each.identity != victim.holder.identity]
        return [(each, []) for each in self._hold(stack, quota, beside)[0]]

    def _climb(self, victim: Victim, gpu: str, steps: list[str], kin: Sequence[Kin]) -> Reason:
        for each, said in ((victim, steps), *kin):
            released = None if each.handle.ended() else self._terminate(each.holder.identity.pid, gpu)
            said.extend([_STEPS[released]] if released in _STEPS else [])
            if released is False and not self._refused_enough(each.holder.identity):
                return Reason.TERMINATE_FAILED
        for _, said in kin:
            said.append(f"with {victim.holder.identity.pid}")
        for number, wait in ((signal.SIGTERM, self._patience.term), (signal.SIGKILL, self._patience.kill)):
            try:
                sent = victim.handle.send(number)
            except PermissionError:
                steps.append(f"{number.name} not permitted")
                return Reason.UNKILLABLE
            if sent:
                steps.append(number.name)
            if not sent or victim.handle.ended(wait):
                return Reason.KILLED if steps else Reason.GONE
        self._hung.add(victim.holder.identity)
        return Reason.UNKILLABLE

    def _refused_enough(self, identity: Identity) -> bool:
        """Count a refusal. After a few, signals have to do: any tenant can make its daemon refuse."""
        if len(self._refused) > MAX_REFUSED:
            self._refused.clear()
        self._refused[identity] += 1
        return self._refused[identity] >= REFUSALS

    def _terminate(self, pid: int, gpu: str) -> bool | Reason | None:
        try:
            return self._tools.mps.terminate(pid, gpu)
        except MpsError as error:
            log.warning("MPS did not let go of a client", reason=str(error.reason), pid=pid, error=error.message)
            return error.reason if error.reason is Reason.CONTROL_BLOCKED else False


def _concerns(quota: Quota, victim: Victim, holders: Sequence[Holder]) -> bool:
    """Whether a process still is one of those to end: it holds some of the GPU, or the whole container has to go."""
    holding = any(holder.identity == victim.holder.identity for holder in holders)
    return holding or quota.on_exceed is OnExceed.KILL_CONTAINER


def protected(identity: Identity) -> bool:
    """Whether this is somebody we never touch, whatever any list says: ourselves, init, the kernel, nobody's."""
    ours = identity.pid in {os.getpid(), os.getppid()}
    return ours or identity.pid <= INIT or identity.kernel_thread or identity.owner is None


def close_interrupted(kill_log: KillLog, node: str, intents: Sequence[dict[str, Any]]) -> None:
    """Answer the INTENTs that an enforcer died over, so that each has its one answer.

    Raises:
        RecordError: the log cannot be written.
    """
    for record in intents:
        kill_log.append(Kind.OUTCOME, deeds.interrupted(node, record))


def _result(why: Reason, endings: Sequence[Ending]) -> Result:
    """Sum up: the worst that happened to one process; if nothing did, why not."""
    found = {ending.result for ending in endings}
    for worst in (Reason.TERMINATE_FAILED, Reason.UNKILLABLE):
        if worst in found:
            return Result(worst, tuple(endings))
    if Reason.KILLED in found:
        return Result(Reason.LIMIT_EXCEEDED if why is Reason.LIMIT_EXCEEDED else Reason.KILLED, tuple(endings))
    return Result(Reason.GONE if found else why, tuple(endings))
