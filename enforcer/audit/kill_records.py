"""Kills as the audit log has them: what each kind of record holds. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit.record import Kind
from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import OnExceed, Quota
from gpushare.reasons import Reason

NOOP_STEPS: Final = ("refused", "not permitted", str(Reason.MPS_CONTROL_BLOCKED))
"""Ends of steps that came to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """What became of one process that was to be ended. ``steps`` is what was tried on it, in order."""

    pid: int
    start: int
    used_mib: int
    result: Reason
    steps: tuple[str, ...] = ()

    @property
    def acted_on(self) -> bool:
        """Whether anything was done to it: a step that was refused, or did not come about, is nothing."""
        return acted_on(self.steps)


def acted_on(steps: Sequence[str]) -> bool:
    """Whether one of these steps did anything to anybody."""
    return any(not step.endswith(NOOP_STEPS) for step in steps)


RECORDED: Final = {
    Decision.WARNED: Kind.WARNED,
    Decision.LENT: Kind.LENT,
    Decision.RECLAIM_NOTICE: Kind.RECLAIM_NOTICE,
}
"""Kind of the record of each decision that kills nobody and is recorded."""
ACTION: Final = "terminate_client,SIGTERM,SIGKILL"
NO_FIRST: Final = (
    "the enforcer cannot kill the container through its init process, so it kills each process of the container"
)
"""Of ``kill-container`` where pods share a pid namespace, or the first process hangs."""
ESCALATED: Final = "new processes replaced the killed ones, so the enforcer kills the whole container"
KEPT: Final[tuple[str, ...]] = ("gpu", "pod", "container", "containerId")
"""What the answer to an INTENT that was left takes over from it."""


def interrupted_record(node: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write the answer to an INTENT that an enforcer died over."""
    return _answer(node, record, Reason.INTERRUPTED, "the enforcer exited before it recorded the result of this kill")


def cancelled_record(node: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write the answer to an INTENT that became durable when nobody waited for it any longer."""
    return _answer(
        node, record, Reason.AUDIT_UNWRITABLE, "the disk wrote the INTENT too late, so the enforcer cancelled the kill"
    )


def _answer(node: str, record: Mapping[str, Any], result: Reason, note: str) -> dict[str, Any]:
    kept = {name: record[name] for name in KEPT if name in record}
    return {"node": node, **kept, "intent": record["seq"], "result": str(result), "note": note}


def warning_fields(node: str, decision: KillDecision, times: int = 1) -> dict[str, Any]:
    """What a GRACE_STARTED, WARNED, LENT or RECLAIM_NOTICE record holds; ``times`` it happened since one like it."""
    usage = {"usedMiB": decision.used_mib, **_cause(decision), "overFor": f"{decision.over_for:.1f}s"}
    if decision.decision is Decision.LENT:
        quota = decision.quota
        loan = {"limitMiB": quota.limit_mib, "borrowedMiB": decision.used_mib - quota.memory_mib}
        usage = {"usedMiB": decision.used_mib, **loan}
    return {**target_fields(node, decision.quota), **usage, **({"times": times} if times > 1 else {})}


def _cause(decision: KillDecision) -> dict[str, Any]:
    """Write what is to be given back, or how much of the use NVML lists for no process, and the Reason of a kill."""
    if decision.reclaim_mib:
        return {"cause": str(Reason.RECLAIMED), "reclaimMiB": decision.reclaim_mib}
    mib = decision.unaccounted_mib
    return {"cause": str(Reason.UNACCOUNTED_MEMORY), "unaccountedMiB": mib} if mib else {}


def target_fields(node: str, quota: Quota) -> dict[str, Any]:
    """Say whom a record is about."""
    return {
        "node": node,
        "gpu": quota.gpu,
        "pod": {"namespace": quota.namespace, "name": quota.pod, "uid": quota.pod_uid},
        "container": quota.container,
        "containerId": None if quota.whole_pod else quota.container_id,
        "quotaMiB": quota.memory_mib,
        "ceilingMiB": quota.ceiling_mib,
    }


def intent_record(
    node: str, decision: KillDecision, holders: Sequence[ProcessUsage], first: Sequence[ProcessUsage] = ()
) -> dict[str, Any]:
    """Write what an INTENT record holds.

    Args:
        node: its name.
        decision: what was decided.
        holders: who is to be ended, at least one.
        first: the first process of the container, where all of it is ended by that; or none.
    """
    holders = [*first, *(each for each in holders if each not in first)]
    whole = decision.quota.on_exceed is OnExceed.KILL_CONTAINER
    first_pid = {"first": first[0].identity.pid} if first else {"note": NO_FIRST}
    one = holders[0].identity
    return {
        **target_fields(node, decision.quota),
        **(first_pid if whole else {}),
        **({"escalated": ESCALATED} if decision.respawns else {}),
        "pid": one.pid,
        "start": one.start,
        "cgroupInode": one.cgroup_inode,
        "usedMiB": decision.used_mib,
        **_cause(decision),
        "overFor": f"{decision.over_for:.1f}s",
        "action": ACTION,
        "targets": [_target(holder) for holder in holders],
        "targetsTotal": len(holders),
    }


def _target(holder: ProcessUsage) -> dict[str, Any]:
    return {"pid": holder.identity.pid, "start": holder.identity.start, "usedMiB": holder.used_mib}


def process_outcome(holder: ProcessUsage, result: Reason, *steps: str) -> ProcessOutcome:
    """Say what became of one process, and by which steps."""
    identity = holder.identity
    return ProcessOutcome(pid=identity.pid, start=identity.start, used_mib=holder.used_mib, result=result, steps=steps)


def outcome_fields(each: ProcessOutcome) -> dict[str, Any]:
    """Write it as an OUTCOME record does."""
    return {
        "pid": each.pid,
        "start": each.start,
        "usedMiB": each.used_mib,
        "result": str(each.result),
        "steps": ",".join(each.steps),
    }
