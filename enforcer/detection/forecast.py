"""Where a container stands and what will happen to it when, in a sentence for people. Pure."""

from typing import Final

from enforcer.detection import budget
from enforcer.detection.detector import budget_left, phase, recent_kills
from enforcer.detection.lending import borrowed_mib, seconds_to_return
from enforcer.detection.types import DetectorConfig, DetectorState, Phase
from enforcer.quota.types import OnExceed, Quota
from gpushare import contract

RESET: Final = "gpu-share breaker --reset"
ONLY_WARNS: Final = f"the enforcer only warns ({contract.ON_EXCEED} is warn, or the chart's enforcer.enforce is false)"
_PHRASES: Final = {
    Phase.NOT_STARTED: "has not started",
    Phase.WITHIN: "is within its kill threshold",
    Phase.KILLING: "is over its quota, and the enforcer is killing it",
    Phase.LOWERED: "is over its kill threshold, which was lowered below what it used and does not count yet",
}


def describe(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> str:
    """Say where a container stands and why, when it will be stopped if nothing changes, and its budget."""
    where = phase(state, quota, now)
    sentence = _PHRASES.get(where) or f"{_over(state, quota, where, rules)}{_end(state, quota, now, rules)}"
    return f"{_used(state, quota)} and {sentence}{_loan(state, quota, now, rules)}{_budget(state, quota, now, rules)}"


def _used(state: DetectorState, quota: Quota) -> str:
    used = state.of(quota).used_mib
    if borrowed := borrowed_mib(quota, used):
        return f"{quota.container} holds {used} MiB: {quota.memory_mib} reserved, {borrowed} borrowed"
    return f"{quota.container} holds {used} MiB of {quota.memory_mib} MiB"


def _loan(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> str:
    """Say of a borrower whether it has to give anything back."""
    if not borrowed_mib(quota, state.of(quota).used_mib) or state.of(quota).phase is not Phase.WITHIN:
        return ""
    left = seconds_to_return(state, quota, now, rules)
    if left is None:
        return "; it must give back what it borrowed when others reserve it"
    return f"; others reserved what it borrowed: the enforcer kills it in {left:.1f}s unless enough is free by then"


def used_seconds(state: DetectorState, quota: Quota, now: float) -> float:
    """Return what a container has used of its budget on a GPU, in seconds."""
    case = state.of(quota)
    return budget.refilled(case.used, case.at, now) if case.phase is Phase.WITHIN else case.used


def _budget(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> str:
    """Say what is left of the budget, where some of it is used, and when it is back if all is within quota."""
    used = used_seconds(state, quota, now)
    empty = budget.seconds_empty(state.accounts, quota.namespace, quota.gpu, now)
    if empty > 0:
        whose = f"; namespace {quota.namespace} used up its budget on this GPU"
        return f"{whose}: it has some again after {empty:.0f}s within its quotas"
    if used <= 0 or quota.on_exceed is OnExceed.WARN:
        return ""
    left = budget_left(state, quota, now, rules)
    return f"; budget over quota: {left:.1f}s left, back in full after {budget.REFILL * used:.0f}s within its quota"


def _over(state: DetectorState, quota: Quota, where: Phase, rules: DetectorConfig) -> str:
    case = state.of(quota)
    if where is Phase.OVER and case.samples < rules.samples:
        return f"is over its quota: {case.samples} of the {rules.samples} samples in a row that make a violation"
    acted = (
        "; the enforcer tried to kill the container recently and waits before the next kill"
        if where is Phase.COOLING_DOWN
        else ""
    )
    return f"has been over its quota for {case.over_for:.1f}s{acted}"


def seconds_until_kill(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> float | None:
    """Seconds until a container over its quota is stopped; ``None`` where it is not over, or will not be stopped."""
    case = state.of(quota)
    if case.phase is Phase.WITHIN and not state.open:
        return seconds_to_return(state, quota, now, rules)
    if case.phase in {Phase.WITHIN, Phase.LOWERED} or quota.on_exceed is OnExceed.WARN or state.open:
        return None
    spared = case.spared_until - now
    return max(0.0, budget_left(state, quota, now, rules), spared, _room_in(state, quota, now, rules))


def _room_in(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> float:
    """Seconds until this node may make another kill; one that takes nothing from its limit need not wait."""
    if state.of(quota).killed or budget.answers(state.accounts, quota, now):
        return 0.0
    kills = sorted(state.kills.values())
    return 0.0 if len(kills) < rules.kills else max(0.0, kills[-rules.kills] + rules.window - now)


def _end(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> str:
    """What comes of it, and in how many seconds."""
    if quota.on_exceed is OnExceed.WARN:
        return f"; {ONLY_WARNS}"
    left = seconds_until_kill(state, quota, now, rules)
    if left is None:
        why = "an operator stopped all kills of this node, so the enforcer kills nothing"
        return f"; {why}; to resume, run `{RESET}` on this node"
    if 0 < left == _room_in(state, quota, now, rules):
        made = f"kills on this node: {recent_kills(state, now, rules)} in the last {rules.window:.0f}s"
        return f"; the enforcer kills it in {left:.1f}s at the earliest because of the kill rate limit ({made})"
    excess = state.of(quota).used_mib - quota.ceiling_mib
    return f"; the enforcer kills it in {left:.1f}s unless it frees {excess} MiB"
