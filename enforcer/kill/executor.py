"""Ending processes, so that it hits nobody else and is always on record.

The order is the safety: take hold by pidfd, then check who it is; write down what is going to happen and wait until
that is durable; check again, because the disk may have taken seconds; let MPS release the client, because killing a
live one can harm its neighbours; then SIGTERM, wait, SIGKILL, wait; write down what became of it.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from enforcer.attribution.cgroup import Attributor, ContainerRef
from enforcer.attribution.container_processes import ContainerProcess, list_processes
from enforcer.attribution.procfs import PidHandle, leads_namespace
from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.audit import kill_records
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.record import Kind
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import KillDecision
from enforcer.kill.container_kill import ContainerKill, PidNamespaceLookup
from enforcer.kill.pidfd_target import PidfdPinner, Victim
from enforcer.kill.process_kill import KillTimeouts, MpsClient, ProcessKiller
from enforcer.kill.recheck import InForce, Rechecker, UsageSource, unchanged
from enforcer.quota.types import OnExceed, Quota
from enforcer.status import messages
from enforcer.status.messages import EventSink
from gpushare.errors import RecordError
from gpushare.reasons import Reason

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KillResult:
    """What came of it. ``endings`` are the processes that were gone or acted upon."""

    reason: Reason
    endings: tuple[ProcessOutcome, ...] = ()

    @property
    def acted(self) -> bool:
        """Whether anything was done to anybody."""
        return any(ending.touched for ending in self.endings)


@dataclass(frozen=True, slots=True)
class PendingKill:
    """A verdict, the number of its INTENT, and what came of it so far."""

    verdict: KillDecision
    intent: int
    result: KillResult


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDependencies:
    """What acting needs of the world."""

    eyes: UsageSource
    attributor: Attributor
    audit_log: AuditWriter
    mps: MpsClient
    sink: EventSink
    open_handle: Callable[[int], PidHandle | None] = PidHandle.open
    leads: Callable[[int], bool] = leads_namespace
    """Whether the end of a process is the end of all in its container."""
    family: Callable[[Attributor, ContainerRef], Sequence[ContainerProcess]] = list_processes
    """Who is in a container now."""
    in_force: InForce = unchanged
    """What a container may hold now."""


class KillExecutor:
    """Carries out KILL verdicts. Safe to use from several threads, each with a verdict of its own."""

    def __init__(self, node: str, tools: KillDependencies, patience: KillTimeouts | None = None) -> None:
        self._node, self._tools = node, tools
        self._patience = patience or KillTimeouts()
        self._grip, self._ladder = (
            PidfdPinner(tools.attributor, tools.open_handle),
            ProcessKiller(tools.mps, self._patience),
        )
        self._kinship = PidNamespaceLookup(tools.leads, lambda owner: tools.family(tools.attributor, owner))
        self._outlook = Rechecker(tools.eyes, tools.in_force)
        self._open: Final[list[PendingKill]] = []
        """Those with a process that hangs."""

    def carry_out(self, verdict: KillDecision) -> KillResult:
        """End the processes of a KILL verdict, as far as that is still right. Blocks for seconds.

        A container that puts new processes in their place is ended whole, by its first process, under an INTENT of its
        own. One without a first process of its own is gone after for as long as patience lasts.
        """
        if verdict.respawns:
            return self._attempt(self._whole(verdict, verdict.targets))[0]
        result, respawned = self._attempt(verdict)
        if not respawned:
            return result
        again, _ = self._attempt(self._whole(verdict, respawned))
        return _result(again.reason, (*result.endings, *again.endings))

    def _whole(self, verdict: KillDecision, holders: tuple[ProcessUsage, ...]) -> KillDecision:
        first = self._kinship.first(holders[0].identity) if holders else None
        if first is None:
            return replace(verdict, respawns=False)
        quota = replace(verdict.quota, on_exceed=OnExceed.KILL_CONTAINER)
        return replace(verdict, quota=quota, targets=holders, used_mib=total_mib(holders), respawns=True)

    def _attempt(self, verdict: KillDecision) -> tuple[KillResult, tuple[ProcessUsage, ...]]:
        """Do it once; returns also who holds memory now, where it takes the end of the whole container."""
        with ExitStack() as stack:
            victims, gone = self._grip.take(stack, verdict.quota, verdict.targets, self._ladder.hung)
            if not victims:
                return KillResult(self._why_nobody(verdict, gone), tuple(gone)), ()
            if (why := self._reason_to_spare(verdict.quota, victims)) is not None:
                return KillResult(why), ()
            pursuit = self._pursuit(verdict.quota)
            first = pursuit.first(stack, victims)
            try:
                intent = self._tools.audit_log.intent(
                    kill_records.intent_record(
                        self._node,
                        verdict,
                        [victim.holder for victim in victims],
                        [victim.holder for victim in first],
                    )
                )
            except RecordError as error:
                log.critical("nobody ended", reason=str(Reason.AUDIT_UNWRITABLE), error=error.message)
                self._tools.sink.notify(messages.unrecorded(verdict))
                return KillResult(Reason.AUDIT_UNWRITABLE), ()
            endings: list[ProcessOutcome] = []
            try:
                result = _result(pursuit.run(stack, first or victims, endings), endings)
            except BaseException:
                self._close(verdict, intent.seq, KillResult(Reason.INTERNAL, tuple(endings)))
                raise
            episode = PendingKill(verdict, intent.seq, result)
            if self._hangs(episode):
                self._leave_open(episode)
            else:
                self._close(verdict, intent.seq, result)
            return result, pursuit.respawned

    def look_after(self) -> None:
        """Answer the INTENTs whose processes hung and have ended since. Does not wait."""
        for episode in tuple(self._open):
            if not self._hangs(episode):
                self._open.remove(episode)
                result = ended_after_all(episode.result)
                self._tools.audit_log.owe(Kind.OUTCOME, self._answer(episode.verdict, episode.intent, result))
                self._tell(episode.verdict, result)

    def _hangs(self, episode: PendingKill) -> bool:
        """Whether one of its processes was killed and does not end."""
        if episode.result.reason is not Reason.UNKILLABLE:
            return False
        hanging = self._ladder.hanging()
        return any((each.pid, each.start) in hanging for each in episode.result.endings)

    def _leave_open(self, episode: PendingKill) -> None:
        """Record that a process hangs. The answer to the INTENT comes when it ends, or from the next enforcer."""
        fields = self._answer(episode.verdict, episode.intent, episode.result)
        self._tools.audit_log.post(Kind.UNKILLABLE, fields, _not_recorded)
        self._tell(episode.verdict, episode.result)
        self._open.append(episode)

    def _pursuit(self, quota: Quota) -> ContainerKill:
        return ContainerKill(quota, self._outlook, self._grip, self._ladder, self._kinship, self._patience)

    def _why_nobody(self, verdict: KillDecision, gone: Sequence[ProcessOutcome]) -> Reason:
        if any(holder.identity in self._ladder.hung for holder in verdict.targets):
            return Reason.UNKILLABLE
        return Reason.ALREADY_EXITED if gone else Reason.IDENTITY_CHANGED

    def _close(self, verdict: KillDecision, intent: int, result: KillResult) -> None:
        """Write what became of an INTENT, and tell the owner."""
        kind = Kind.OUTCOME if result.endings or result.reason is Reason.INTERNAL else Kind.ABORTED
        try:
            self._tools.audit_log.answer(kind, self._answer(verdict, intent, result))
        except RecordError as error:
            # The deed is done and its INTENT is durable; should we end before it is written, the next start answers.
            log.critical(
                "outcome not recorded", reason=str(Reason.AUDIT_UNWRITABLE), intent=intent, error=error.message
            )
        self._tell(verdict, result)

    def _answer(self, verdict: KillDecision, intent: int, result: KillResult) -> dict[str, Any]:
        fields = {**kill_records.about(self._node, verdict.quota), "intent": intent, "result": str(result.reason)}
        if result.endings:
            fields |= {
                "targets": [kill_records.shown(ending) for ending in result.endings],
                "ended": len(result.endings),
            }
        return fields

    def _tell(self, verdict: KillDecision, result: KillResult) -> None:
        head = self._tools.audit_log.head
        self._tools.sink.notify(messages.ended(verdict, result.reason, result.endings, head))

    def _reason_to_spare(self, quota: Quota, victims: Sequence[Victim]) -> Reason | None:
        """Look again; ``None`` where the container is still over and one of these still holds some of it."""
        holders = self._outlook.holders(quota)
        if (why := self._outlook.let_be(quota, holders)) is not None:
            return why
        holding = {holder.identity for holder in holders or ()}
        return None if any(victim.holder.identity in holding for victim in victims) else Reason.IDENTITY_CHANGED


def ended_after_all(result: KillResult) -> KillResult:
    """What came of it once those that hung have ended."""
    put_right = [
        replace(each, result=Reason.KILLED) if each.result is Reason.UNKILLABLE else each for each in result.endings
    ]
    return _result(Reason.KILLED, put_right)


def _not_recorded(error: RecordError) -> None:
    log.warning("hanging process not recorded", reason=str(Reason.AUDIT_UNWRITABLE), error=error.message)


def _result(why: Reason, endings: Sequence[ProcessOutcome]) -> KillResult:
    """Sum up: the worst that happened to one process; if nothing did, why not."""
    found = {ending.result for ending in endings}
    for worst in (Reason.TERMINATE_FAILED, Reason.UNKILLABLE):
        if worst in found:
            return KillResult(worst, tuple(endings))
    if Reason.KILLED in found:
        return KillResult(Reason.LIMIT_EXCEEDED if why is Reason.LIMIT_EXCEEDED else Reason.KILLED, tuple(endings))
    return KillResult(Reason.ALREADY_EXITED if Reason.ALREADY_EXITED in found else why, tuple(endings))
