"""Report a kill: INTENT before it, OUTCOME after it, and the messages to the pod's owner."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from enforcer.attribution.cgroup import ContainerRef
from enforcer.attribution.container_names import ContainerNames
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit import kill_records
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.record import Kind
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import KillDecision
from enforcer.kill.process_kill import ProcessKiller
from enforcer.status import messages, termination_message
from enforcer.status.events import EventRecorder
from gpushare.errors import RecordError
from gpushare.reasons import Reason

log = structlog.get_logger()

NAMED: Final = 16
"""Processes that a line of the log names: a tenant can have any number."""


@dataclass(frozen=True, slots=True)
class KillResult:
    """What came of a kill. ``outcomes`` are those of the processes that had exited or were acted on.

    ``cut_short``: why the enforcer stopped after it had killed a process, where the container may still be over quota.
    """

    reason: Reason
    outcomes: tuple[ProcessOutcome, ...] = ()
    cut_short: Reason | None = None

    @property
    def acted(self) -> bool:
        """Whether anything was done to a process."""
        return any(each.acted_on for each in self.outcomes)

    @property
    def some_pids(self) -> list[int]:
        """The pids of the first of the processes, for a line of the log."""
        return [each.pid for each in self.outcomes[:NAMED]]


@dataclass(frozen=True, slots=True)
class PendingKill:
    """A kill without its OUTCOME yet: the decision, the number of its INTENT, and what came of it so far."""

    decision: KillDecision
    intent: int
    result: KillResult


class KillReporter:
    """Writes the audit records of kills and notifies the pods' owners. Safe to use from several threads.

    Args:
        node: its name.
        audit_log: takes the records.
        events: takes the messages.
        killer: knows which processes are unkillable.
        containers: knows where the kubelet keeps their termination messages.
    """

    def __init__(
        self,
        node: str,
        audit_log: AuditWriter,
        events: EventRecorder,
        killer: ProcessKiller,
        containers: ContainerNames | None,
    ) -> None:
        self._node, self._audit_log, self._events, self._killer = node, audit_log, events, killer
        self._containers = containers
        self._pending: Final[list[PendingKill]] = []
        """Those with an unkillable process."""

    def intent(
        self, decision: KillDecision, targets: Sequence[ProcessUsage], init: Sequence[ProcessUsage]
    ) -> int | None:
        """Write INTENT and return its number once it is durable; ``None``: it is not, and no process may be killed."""
        try:
            return self._audit_log.write_intent(kill_records.intent_record(self._node, decision, targets, init)).seq
        except RecordError as error:
            log.critical("no process killed", reason=str(Reason.AUDIT_UNWRITABLE), error=error.message)
            self._events.record(messages.audit_unavailable(decision))
            return None

    def ending(self, decision: KillDecision, intent: int, container: ContainerRef) -> None:
        """Write into a container's termination message why it ends, where the kubelet keeps one."""
        path = self._containers and self._containers.termination_message(container)
        if path:
            termination_message.append(path, messages.ending(decision, self._node, intent))

    def outcome(self, kill: PendingKill) -> None:
        """Write what came of a kill, and notify the owner.

        UNKILLABLE while a killed process is alive: OUTCOME follows when it has ended, or from the next enforcer.
        """
        if _is_unkillable(kill, self._killer.unkillable_pids()):
            self._audit_log.append_async(Kind.UNKILLABLE, self._fields(kill), _not_recorded)
            self._pending.append(kill)
        else:
            self._complete(kill)
        self._notify(kill)

    def reap_pending(self) -> None:
        """Write OUTCOME of the kills whose unkillable processes have ended since. Does not wait."""
        alive = self._killer.unkillable_pids()  # asked also where no kill is pending: it lets go of those that ended
        for kill in tuple(self._pending):
            if not _is_unkillable(kill, alive):
                self._pending.remove(kill)
                ended = replace(kill, result=ended_after_all(kill.result))
                self._audit_log.complete_later(Kind.OUTCOME, self._fields(ended))
                self._notify(ended)

    def _complete(self, kill: PendingKill) -> None:
        kind = Kind.OUTCOME if kill.result.outcomes or kill.result.reason is Reason.INTERNAL else Kind.ABORTED
        try:
            self._audit_log.complete(kind, self._fields(kill))
        except RecordError as error:
            # The kill is done and its INTENT is durable; should this enforcer stop before it is written, the next one
            # completes it.
            log.critical(
                "outcome not recorded", reason=str(Reason.AUDIT_UNWRITABLE), intent=kill.intent, error=error.message
            )

    def _fields(self, kill: PendingKill) -> dict[str, Any]:
        result = kill.result
        fields = {
            **kill_records.target_fields(self._node, kill.decision.quota),
            "intent": kill.intent,
            "result": str(result.reason),
        }
        if result.outcomes:
            targets = [kill_records.outcome_fields(each) for each in result.outcomes]
            fields |= {"targets": targets, "ended": len(targets)}
        return fields

    def _notify(self, kill: PendingKill) -> None:
        head, result = self._audit_log.head, kill.result
        self._events.record(messages.killed(kill.decision, result.reason, result.outcomes, head, result.cut_short))


def _is_unkillable(kill: PendingKill, alive: Collection[tuple[int, int]]) -> bool:
    """Tell whether a process that the kill did not end is alive; ``alive`` are pid and start of all such processes."""
    unkillable = kill.result.reason is Reason.UNKILLABLE
    return unkillable and any((each.pid, each.start) in alive for each in kill.result.outcomes)


def summarize(reason: Reason, outcomes: Sequence[ProcessOutcome]) -> KillResult:
    """Return the worst that came of a process; if nothing was done to one, the reason that the kill stopped for."""
    found, cut_short = {each.result for each in outcomes}, reason if reason in messages.CUT_SHORT else None
    for worst in (Reason.TERMINATE_FAILED, Reason.UNKILLABLE):
        if worst in found:
            return KillResult(worst, tuple(outcomes), cut_short)
    if Reason.KILLED in found:
        result = Reason.LIMIT_EXCEEDED if reason is Reason.LIMIT_EXCEEDED else Reason.KILLED
        return KillResult(result, tuple(outcomes), cut_short)
    return KillResult(Reason.ALREADY_EXITED if Reason.ALREADY_EXITED in found else reason, tuple(outcomes))


def ended_after_all(result: KillResult) -> KillResult:
    """Return what came of a kill once its unkillable processes have ended."""
    ended = [
        replace(each, result=Reason.KILLED) if each.result is Reason.UNKILLABLE else each for each in result.outcomes
    ]
    return summarize(result.cut_short or Reason.KILLED, ended)


def _not_recorded(error: RecordError) -> None:
    log.warning("unkillable process not recorded", reason=str(Reason.AUDIT_UNWRITABLE), error=error.message)
