"""Where a container stands and what will happen to it when, in a sentence for people. Pure."""

from typing import Final

from enforcer.judge import Case, Phase, Rules, State, kill_in, lately, phase, place_of
from enforcer.model import Quota

RESET: Final = "gpu-share breaker --reset"
_SAID: Final = {
    Phase.NOT_STARTED: "has not started",
    Phase.WITHIN: "is within its quota",
    Phase.ACTING: "is over its quota and is being stopped",
}


def describe(state: State, quota: Quota, now: float, rules: Rules) -> str:
    """Say where a container stands and why, and when it will be stopped if nothing changes."""
    case = state.cases.get((quota.container_id or "", quota.gpu), Case())
    where = phase(state, quota, now)
    said = _SAID.get(where) or f"{_over(where, case, rules)}{_end(state, quota, case, now, rules)}"
    return f"{quota.container} holds {case.used_mib} MiB of {quota.memory_mib} MiB and {said}"


def _over(where: Phase, case: Case, rules: Rules) -> str:
    if where is Phase.OVER:
        return f"was seen over its quota and is being watched: {case.samples} of {rules.samples} samples in a row"
    acted = " and was acted upon lately" if where is Phase.COOLING_DOWN else ""
    return f"is over its quota for {case.over_for:.1f}s{acted}"


def _end(state: State, quota: Quota, case: Case, now: float, rules: Rules) -> str:
    """What comes of it, and in how many seconds."""
    grace = kill_in(quota, case)
    if grace is None:
        return "; only a warning is wanted"
    if state.open:
        return f"; nobody is stopped here: the breaker is open until an operator says `{RESET}` on this node"
    kills = lately(state, now, rules)
    if len(kills) >= rules.kills and (room := kills[-rules.kills].at + rules.window - now) > grace:
        return f", not to be stopped for {room:.1f}s: this node made {len(kills)} kills in {rules.window:.0f}s"
    cool = state.cooling.get(place_of(quota), now) - now
    excess = case.used_mib - quota.ceiling_mib
    return f", to be stopped in {max(grace, cool):.1f}s unless it frees {excess} MiB"
