"""Messages to tenants, the same in Events, the sidecar's log and ``gpu-share explain``. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.record import ChainHead
from enforcer.detection.forecast import ONLY_WARNS
from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import Quota
from enforcer.status.dedup import FIRST, Repetition
from gpushare.patterns import Search
from gpushare.reasons import Reason

NOTE_BYTES: Final = 1024
"""The API server refuses longer notes."""
NAMED: Final = 5
"""So many pids are spelled out in a sentence."""
_USED: Final = Search(r"container ([a-z0-9-]{1,63}) holds ([0-9]{1,9}) MiB of its ([0-9]{1,9}) MiB", 4 * NOTE_BYTES)
"""As ``_holds`` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """One message to the owner of a container."""

    quota: Quota
    reason: Reason
    note: str
    action: str
    warning: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """One line of a pod's status file; ``time`` as RFC 3339."""

    time: str
    text: str


def message(notice: UserMessage, time: str) -> Message:
    """Say a notice in one line: the reason's word, then the sentence of the Event."""
    return Message(time, truncate_note(f"{notice.reason}: {notice.note}"))


def over_quota(decision: KillDecision, repetition: Repetition = FIRST) -> UserMessage:
    """The container is over quota, in enough samples."""
    quota = decision.quota
    end = ONLY_WARNS
    if decision.kill_in is not None:
        end = f"the enforcer kills its processes in {decision.kill_in:.1f}s unless it frees {_excess(decision)} MiB"
    return UserMessage(
        quota=quota, reason=_over(decision), note=f"{_again(decision, repetition)}; {end}", action="Warn"
    )


def lowered(decision: KillDecision, repetition: Repetition = FIRST) -> UserMessage:
    """The kill threshold was lowered below what the container used."""
    cause = "its kill threshold was lowered below what it used, and counts in ten minutes or once it is within it"
    note = f"{_again(decision, repetition)}; not killed: {cause}"
    return UserMessage(quota=decision.quota, reason=Reason.OVER_QUOTA, note=note, action="Warn")


def reclaim_notice(decision: KillDecision, repetition: Repetition = FIRST) -> UserMessage:
    """The container must give back what it borrowed."""
    end = "not killed: an operator stopped all kills of this node (circuit breaker)"
    if decision.kill_in is not None:
        end = f"the enforcer kills its processes in {decision.kill_in:.1f}s unless it frees {decision.reclaim_mib} MiB"
    note = f"{_again(decision, repetition)}; {end}"
    return UserMessage(quota=decision.quota, reason=Reason.RECLAIMED, note=note, action="Warn")


def recovered(decision: KillDecision, _: Repetition = FIRST) -> UserMessage:
    """The container is within its kill threshold again, in time."""
    back = "back within its kill threshold (quota plus tolerance)"
    note = f"{_holds(decision.quota, decision.used_mib)}: {back}, so the enforcer kills nothing"
    return UserMessage(quota=decision.quota, reason=Reason.BACK_UNDER_QUOTA, note=note, action="Warn", warning=False)


def rate_limited(decision: KillDecision, repetition: Repetition = FIRST) -> UserMessage:
    """The container is not killed yet: this node made too many kills."""
    cause = "the enforcer killed as many containers of this node as it may in a minute; free GPU memory until the next"
    note = f"{_again(decision, repetition)}; not killed yet: {cause}"
    return UserMessage(quota=decision.quota, reason=Reason.KILL_RATE_LIMITED, note=note, action="Wait")


def breaker_open(decision: KillDecision, repetition: Repetition = FIRST) -> UserMessage:
    """The container is not killed: the circuit breaker is open."""
    note = f"{_again(decision, repetition)}; not killed: an operator stopped all kills of this node (circuit breaker)"
    return UserMessage(quota=decision.quota, reason=Reason.BREAKER_OPEN, note=note, action="Wait")


def killed(
    decision: KillDecision,
    result: Reason,
    outcomes: Sequence[ProcessOutcome],
    head: ChainHead,
    cut_short: Reason | None = None,
) -> UserMessage:
    """The kill has ended. The note has the audit log's head: a hint and no anchor, because tenants can write Events.

    ``cut_short``: why the enforcer stopped although the container may still be over quota.
    """
    hit = [each for each in outcomes if each.acted_on]
    pids = ", ".join(str(each.pid) for each in hit[:NAMED]) + (", ..." if len(hit) > NAMED else "")
    done = (
        f"the enforcer killed {len(hit)} of its processes (pid {pids})" if hit else "the enforcer signalled no process"
    )
    done += ", then the whole container, because it was over quota again" if decision.respawns and hit else ""
    over = f"{_again(decision)}{_lasted(decision)}"
    end = CUT_SHORT[cut_short] if cut_short and result is Reason.KILLED else RESULTS[result]
    note = f"{over}: {done}; {end}"
    return UserMessage(quota=decision.quota, reason=result, note=f"{note}; audit log {head}", action="Kill")


def ending(decision: KillDecision, node: str, intent: int) -> str:
    """Say in a container's own status why it ended, before it does; ``intent`` is the number of the audit record."""
    over = f"{_again(decision)}{_lasted(decision)}"
    return f"{Reason.KILLED}: {over}: gpu-share killed processes of it; audit record {intent} of node {node}"


def audit_unavailable(decision: KillDecision) -> UserMessage:
    """The container is not killed: INTENT cannot be written. The cause concerns the node, and goes to operators."""
    note = f"{_holds(decision.quota, decision.used_mib)}; not killed: the enforcer cannot write its audit log"
    return UserMessage(quota=decision.quota, reason=Reason.AUDIT_UNWRITABLE, note=note, action="Wait")


def truncate_note(note: str) -> str:
    """Return the note as an Event takes it: valid UTF-8, no control characters, at most ``NOTE_BYTES``."""
    clean = "".join(letter if letter.isprintable() else " " for letter in note).encode("utf-8", "replace")
    return clean.decode() if len(clean) <= NOTE_BYTES else clean[: NOTE_BYTES - 3].decode("utf-8", "ignore") + "..."


RESULTS: Final = {
    Reason.KILLED: "the container is within its kill threshold (quota plus tolerance) again, or gone",
    Reason.ALREADY_EXITED: "the processes had already exited",
    Reason.UNKILLABLE: "some processes survive SIGKILL: they hang in the kernel",
    Reason.TERMINATE_FAILED: "the MPS server did not terminate one client, so the enforcer did not kill that client",
    Reason.IDENTITY_CHANGED: "the pids now belong to other processes than at the kill decision",
    Reason.NVML_UNAVAILABLE: "the enforcer could not read the GPU any more",
    Reason.NOT_ENFORCING: "a changed policy, a changed quota or the open circuit breaker cancelled the kill",
    Reason.BACK_UNDER_QUOTA: "the container had come back within its kill threshold (quota plus tolerance)",
    Reason.INTERNAL: "the enforcer failed during the kill; read the enforcer's log",
    Reason.LIMIT_EXCEEDED: "the container is still over its quota: new processes start too fast to kill",
}

CUT_SHORT: Final = {
    Reason.NVML_UNAVAILABLE: "then the enforcer could not read the GPU any more and ended the kill",
    Reason.NOT_ENFORCING: "then the container's quota or its policy changed, or the circuit breaker opened, so the "
    "enforcer ended the kill",
    Reason.IDENTITY_CHANGED: "the enforcer could kill no more of its processes; another kill follows if the container "
    "stays over its quota",
}
"""Why the enforcer stopped after it had killed a process, where the container may still be over its quota."""


def _holds(quota: Quota, used_mib: int) -> str:
    if quota.whole_pod:
        return f"processes of the pod hold {used_mib} MiB on {quota.gpu} beyond its {quota.reserved_mib} MiB there"
    return f"container {quota.container} holds {used_mib} MiB of its {quota.memory_mib} MiB on {quota.gpu}"


def used_amounts(note: str) -> tuple[str, int, int] | None:
    """Read from a message which container used how many MiB of how many; ``None`` from one about something else."""
    found = _USED.search(note)
    return None if found is None else (found[1], int(found[2]), int(found[3]))


def _again(decision: KillDecision, repetition: Repetition = FIRST) -> str:
    hidden = f", {decision.unaccounted_mib} MiB of them in no process's row" if decision.unaccounted_mib else ""
    loan = f", and others reserved {decision.reclaim_mib} MiB of what it borrowed" if decision.reclaim_mib else ""
    return f"{_holds(decision.quota, decision.used_mib)}{hidden}{repetition.words}{loan}"


def _lasted(decision: KillDecision) -> str:
    if not decision.reclaim_mib:
        return f" for {decision.over_for:.1f}s"
    return f", warned {decision.over_for:.1f}s before" if decision.over_for else ", at once"


def _over(decision: KillDecision) -> Reason:
    return Reason.UNACCOUNTED_MEMORY if decision.unaccounted_mib else Reason.OVER_QUOTA


def _excess(decision: KillDecision) -> int:
    return max(0, decision.used_mib - decision.quota.ceiling_mib)


DECIDED: Final = {
    Decision.WARNED: over_quota,
    Decision.LOWERED: lowered,
    Decision.BACK_UNDER: recovered,
    Decision.RATE_LIMITED: rate_limited,
    Decision.BREAKER_OPEN: breaker_open,
    Decision.RECLAIM_NOTICE: reclaim_notice,
}
"""Message of each decision that kills nothing."""
