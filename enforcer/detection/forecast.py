"""Where a container stands and what will happen to it when, in a sentence for people. Pure."""

from typing import Final

from enforcer.detection import debt as debts
from enforcer.detection import fresh
from enforcer.detection.debt import Debt
from enforcer.detection.detector import container_key, grace_remaining, has_no_grace, phase, recent_kills
from enforcer.detection.types import DetectorConfig, DetectorState, Phase, ViolationState
from enforcer.quota.types import Quota

RESET: Final = "gpu-share breaker --reset"
_PHRASES: Final = {
    Phase.NOT_STARTED: "has not started",
    Phase.WITHIN: "is within its kill threshold",
    Phase.KILLING: "is over its quota, and the enforcer is killing it",
}


def describe(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> str:
    """Say where a container stands and why, and when it will be stopped if nothing changes."""
    case = state.cases.get((quota.container_id or "", quota.gpu), ViolationState())
    where = phase(state, quota, now)
    sentence = _PHRASES.get(where) or f"{_over(where, case, rules)}{_end(state, quota, case, now, rules)}"
    sentence += _debt(state, quota, now, rules)
    return f"{quota.container} holds {case.used_mib} MiB of {quota.memory_mib} MiB and {sentence}"


def owed(state: DetectorState, quota: Quota, now: float) -> float:
    """Return a container's debt on a GPU, in seconds."""
    return debts.left(state.debts.get(debts.key_of(quota)) or Debt(), now)


def _debt(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> str:
    """Say what is left of the credit where it counts, and that there is no second grace period."""
    debt, credit = state.debts.get(debts.key_of(quota)), rules.debt.credit_of(quota)
    seconds = owed(state, quota, now)
    if debt is not None and debts.killed_lately(debt, now, rules.debt):
        return f"; it was killed {now - (debt.killed or now):.0f}s ago and has no second grace period"
    if has_no_grace(state, quota, now):
        return (
            f"; it has no grace period: {fresh.PODS} pods of {quota.namespace} were killed or exited over quota "
            "on this node"
        )
    if seconds < credit / 2:
        return ""
    return f"; earlier violations used up {seconds:.1f}s of its debt credit of {credit:.1f}s"


def _over(where: Phase, case: ViolationState, rules: DetectorConfig) -> str:
    if where is Phase.OVER:
        return f"is over its quota: {case.samples} of the {rules.samples} consecutive samples that make a violation"
    acted = (
        "; the enforcer tried to kill the container recently and waits before the next kill"
        if where is Phase.COOLING_DOWN
        else ""
    )
    return f"has been over its quota for {case.over_for:.1f}s{acted}"


def seconds_until_kill(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> float | None:
    """Seconds until a container over its quota is stopped; ``None`` where it is not over, or will not be stopped."""
    case = state.cases.get((quota.container_id or "", quota.gpu), ViolationState())
    grace = grace_remaining(quota, case)
    if not case.samples or grace is None or state.open:
        return None
    cool = state.cooling.get(container_key(quota), now) - now
    return max(grace, cool, _room_in(state, quota, now, rules))


def _room_in(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> float:
    """Seconds until this node may make another kill of that namespace; one without a grace period need not wait."""
    debt = state.debts.get(debts.key_of(quota))
    if debt is not None and debts.killed_lately(debt, now, rules.debt):
        return 0.0
    if has_no_grace(state, quota, now):
        return 0.0
    kills = recent_kills(state, now, rules, quota.namespace)
    return 0.0 if len(kills) < rules.kills else kills[-rules.kills].at + rules.window - now


def _end(state: DetectorState, quota: Quota, case: ViolationState, now: float, rules: DetectorConfig) -> str:
    """What comes of it, and in how many seconds."""
    if grace_remaining(quota, case) is None:
        return "; the enforcer only warns (policy warn, or --no-enforce)"
    left = seconds_until_kill(state, quota, now, rules)
    if left is None and state.opening is not None:
        return (
            "; the circuit breaker of this node is open, so the enforcer kills nothing; the breaker "
            "closes when its cause ends, or "
            "run "
            f"`{RESET}`"
        )
    if left is None:
        return f"; the circuit breaker of this node is open, so the enforcer kills nothing; to close it, run `{RESET}`"
    if 0 < left == _room_in(state, quota, now, rules):
        kills = len(recent_kills(state, now, rules, quota.namespace))
        made = f"kills: {kills} in the last {rules.window:.0f}s in namespace {quota.namespace}"
        return f"; the enforcer kills it in {left:.1f}s at the earliest because of the kill rate limit ({made})"
    return f"; the enforcer kills it in {left:.1f}s unless it frees {case.used_mib - quota.ceiling_mib} MiB"
