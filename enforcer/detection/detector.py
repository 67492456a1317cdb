"""Detect containers over quota, and decide when to kill. A state machine; time is an argument. Pure.

Per container and GPU: sums what all its processes hold, charges the time over quota to its budget and to its
namespace's (``enforcer.detection.budget``), and wants several samples in a row before it believes them. A sample
without a reading decides nothing. One node makes so many kills a minute, of those whose namespace has a budget left.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from enforcer.attribution.snapshot import ProcessUsage, UsageByContainer, total_mib
from enforcer.detection import budget
from enforcer.detection.budget import Account, AccountKey
from enforcer.detection.targets import select_targets
from enforcer.detection.types import (
    ContainerKey,
    ContainerState,
    Decision,
    DetectorConfig,
    DetectorState,
    Key,
    KillDecision,
    Phase,
    container_key,
    key_of,
)
from enforcer.quota.types import OnExceed, Quota

DOUBT: Final = 600.0
"""Seconds for which a kill threshold that was lowered below what a container used does not count.

A resize below what is used has to be forced, and counts at once. All else is a mistake of ours or of an operator. A
tenant keeps by it what it could hold before, which stays reserved."""
UNKNOWN_MIB: Final = 2**53
"""Memory of a GPU that nobody knows: nothing is charged to a namespace there."""


@dataclass(frozen=True, slots=True)
class _Due:
    """A container without budget, and what it holds on the GPU in question."""

    quota: Quota
    holders: tuple[ProcessUsage, ...]


def evaluate(  # noqa: PLR0913 - one argument per fact the answer depends on
    state: DetectorState, quotas: Sequence[Quota], readings: Mapping[str, UsageByContainer | None], now: float,
    rules: DetectorConfig, *, gpu_mib: Mapping[str, int] | None = None, only: AbstractSet[str] | None = None,
    incomplete: AbstractSet[str] = frozenset(),
) -> tuple[DetectorState, tuple[KillDecision, ...]]:  # fmt: skip
    """Take in one sample of every GPU, or of some.

    Args:
        state: what was remembered.
        quotas: at most one per container id and GPU. Containers without one are ignored.
        readings: by GPU UUID; ``None``, or no entry, where the GPU could not be read.
        now: seconds on a clock that never jumps and goes on while the machine sleeps.
        rules: how careful to be.
        gpu_mib: memory of the GPUs by UUID, as NVML reports it.
        only: UUIDs of the GPUs that were sampled, where the others were left out: what is known of those stays.
        incomplete: UUIDs of the GPUs whose readings lack processes, because nobody knows whose they are.
            Who is over without them is over. Of who seems within, all stays as it was.
    """
    busy = frozenset(place for (place, _), case in state.cases.items() if case.phase is Phase.KILLING)
    seen = frozenset(gpu for gpu, reading in readings.items() if reading is not None)
    state = _without_old(state, seen, now, rules)
    steps = {gpu: max(0.0, now - state.sampled.get(gpu, now)) * (gpu not in state.blind) for gpu in seen}
    read = [quota for quota in quotas if quota.gpu in seen and (only is None or quota.gpu in only)]
    state = _charged(state, read, readings, steps, now, gpu_mib or {}, incomplete)
    cases = _kept(state, quotas, now)
    decisions, due = list[KillDecision](), list[_Due]()
    for quota in (each for each in read if each.container_id is not None):
        holders = _holders(readings, quota)
        if quota.gpu in incomplete and total_mib(holders) <= quota.ceiling_mib:
            continue
        answers = budget.answers(state.accounts, quota, now)
        case = _look(state.of(quota), quota, holders, steps[quota.gpu], now, rules)
        case = _with_evidence(case, state, quota, now, rules)
        cases[key_of(quota)], more = _with_news(case, quota, rules, answers=answers)
        decisions += more
        if container_key(quota) not in busy and _is_due(cases[key_of(quota)], quota, now, rules, answers=answers):
            due.append(_Due(quota, holders))
    blind = state.blind.union(state.sampled if only is None else only) - seen
    sampled = {**state.sampled, **dict.fromkeys(seen, now)}
    kills = {place: at for place, at in state.kills.items() if now - at < rules.window}
    kills |= dict.fromkeys(kills.keys() & _killing_first(cases), now)
    state = replace(state, cases=cases, sampled=sampled, blind=blind, kills=kills)
    if state.open:
        stopped = [each for one in due for each in _postponed(Decision.BREAKER_OPEN, one.quota, cases)]
        return state, (*decisions, *stopped)
    pods = {pod for pod, _ in busy}  # one attempt on a pod at a time: none keeps the others waiting
    state, chosen = _kills([each for each in due if each.quota.pod_uid not in pods], cases, state, now, rules)
    return state, (*decisions, *chosen)


def _killing_first(cases: Mapping[Key, ContainerState]) -> frozenset[ContainerKey]:
    """Return the containers of which the first kill is under way: while it is, it is of now."""
    return frozenset(place for (place, _), case in cases.items() if case.phase is Phase.KILLING and not case.killed)


def _without_old(state: DetectorState, gpus: AbstractSet[str], now: float, rules: DetectorConfig) -> DetectorState:
    """Forget violations on GPUs that were not read for long: as far as anybody knows they ended then."""
    old = {gpu: at for gpu, at in state.sampled.items() if gpu in gpus and now - at > rules.max_gap}
    if not old:
        return state
    cases = {
        key: replace(case, phase=Phase.WITHIN, samples=0, over_for=0.0, at=min(case.at, old[key[1]]))
        if key[1] in old and case.phase is not Phase.KILLING
        else case
        for key, case in state.cases.items()
    }
    accounts = {key: replace(each, over=False) if key[1] in old else each for key, each in state.accounts.items()}
    sampled = {gpu: at for gpu, at in state.sampled.items() if gpu not in old}
    return replace(state, cases=cases, accounts=accounts, sampled=sampled)


def _holders(readings: Mapping[str, UsageByContainer | None], quota: Quota) -> tuple[ProcessUsage, ...]:
    return (readings.get(quota.gpu) or {}).get(quota.container_id or "", ())


def _charged(
    state: DetectorState, read: Sequence[Quota], readings: Mapping[str, UsageByContainer | None],
    steps: Mapping[str, float], now: float, gpu_mib: Mapping[str, int], incomplete: AbstractSet[str],
) -> DetectorState:  # fmt: skip
    """Charge the namespaces. Of one that seems within in an incomplete reading, the account stays as it was."""
    accounts = {key: each for key, each in state.accounts.items() if key[1] not in steps}
    for gpu, step in steps.items():
        here = [quota for quota in read if quota.gpu == gpu and quota.on_exceed is not OnExceed.WARN]
        used = {name: _used_mib(here, readings, name) for name in {quota.namespace for quota in here}}
        charged = budget.charge(state.accounts, here, used, gpu_mib.get(gpu, UNKNOWN_MIB), gpu, step, now)
        stay = {key: each for key, each in state.accounts.items() if key[1] == gpu} if gpu in incomplete else {}
        accounts |= {**charged, **{key: each for key, each in stay.items() if not _is_over(charged, key)}}
    return replace(state, accounts=accounts)


def _is_over(accounts: Mapping[AccountKey, Account], key: AccountKey) -> bool:
    return key in accounts and accounts[key].over


def _used_mib(quotas: Sequence[Quota], readings: Mapping[str, UsageByContainer | None], namespace: str) -> int:
    """Return what the containers of a namespace hold on a GPU, each process once."""
    own = [quota for quota in quotas if quota.namespace == namespace]
    return sum({each.identity: each.used_mib for quota in own for each in _holders(readings, quota)}.values())


def _kept(state: DetectorState, quotas: Sequence[Quota], now: float) -> dict[Key, ContainerState]:
    """Keep containers that are here, or have used some of their budget; what does not run is within its quota."""
    here, run = {key_of(quota) for quota in quotas}, {key_of(quota) for quota in quotas if quota.container_id}
    return {
        key: case
        if key in run or case.phase is Phase.KILLING
        else replace(case, phase=Phase.WITHIN, used_mib=0, samples=0)
        for key, case in state.cases.items()
        if key in here or case.phase is Phase.KILLING or budget.refilled(case.used, case.at, now) > 0
    }


def _look(
    case: ContainerState, quota: Quota, holders: Sequence[ProcessUsage], step: float, now: float, rules: DetectorConfig
) -> ContainerState:
    """Take in one sample of a container; its phase is that before it."""
    case = _with_threshold(replace(case, used_mib=total_mib(holders)), quota, now)
    if case.used_mib > quota.ceiling_mib:
        return _over(case, quota, step, now, rules)
    if case.phase is not Phase.WITHIN:
        return replace(case, at=now)
    if budget.refilled(case.used, case.at, now) > 0:
        return case
    return replace(case, used=0.0, killed=False)


def _with_evidence(
    case: ContainerState, state: DetectorState, quota: Quota, now: float, rules: DetectorConfig
) -> ContainerState:
    """Forget samples over quota at the first one within, unless a budget is overdrawn.

    Else memory that is taken and freed within three samples, again and again, would cost nothing.
    """
    if case.used_mib > quota.ceiling_mib or not case.samples:
        return case
    return case if _is_overdrawn(case, state, quota, now, rules) else replace(case, samples=0)


def _is_overdrawn(case: ContainerState, state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> bool:
    """Whether more is used of a budget, the container's or its namespace's, than a worker's successor explains."""
    used = budget.refilled(case.used, case.at, now)
    empty = budget.seconds_empty(state.accounts, quota.namespace, quota.gpu, now, budget.OVERDRAFT)
    return used >= size_of(quota, rules) + budget.OVERDRAFT or empty > 0


def _with_threshold(case: ContainerState, quota: Quota, now: float) -> ContainerState:
    """Take in the kill threshold as it is now."""
    before, new = case.threshold_mib, quota.ceiling_mib
    lowered = now if case.lowered is None else case.lowered
    if before is None or new >= before or case.used_mib <= new or quota.resized or now - lowered >= DOUBT:
        return replace(case, threshold_mib=new, lowered=None)
    return replace(case, lowered=lowered)


def _over(case: ContainerState, quota: Quota, step: float, now: float, rules: DetectorConfig) -> ContainerState:
    """Charge one sample over quota. Where only a warning is wanted, or the threshold is in doubt, it costs nothing."""
    begins = case.phase is Phase.WITHIN
    used = budget.refilled(case.used, case.at, now) if begins else case.used
    if quota.on_exceed is not OnExceed.WARN and not _is_lowered(case):
        size = size_of(quota, rules)
        used = min(used + (rules.first if begins else step), size + max(size, 2 * budget.OVERDRAFT))
    elif not begins:
        used = budget.refilled(case.used, case.at, now)
    return replace(
        case, used=used, at=now, samples=case.samples + 1, over_for=0.0 if begins else case.over_for + step
    )  # fmt: skip


def _is_lowered(case: ContainerState) -> bool:
    """Whether a container is over a threshold that does not count yet, and not over the one that does."""
    return case.lowered is not None and case.used_mib <= (case.threshold_mib or 0)


def _with_news(
    case: ContainerState, quota: Quota, rules: DetectorConfig, *, answers: bool
) -> tuple[ContainerState, list[KillDecision]]:
    """Say what is new about a container, and give it the phase after the sample."""
    before, phase = case.phase, _phase_after(case, quota, rules)
    left = _left(quota, case.used, rules)
    spares = quota.on_exceed is OnExceed.WARN or phase is Phase.LOWERED
    news = [Decision.GRACE_STARTED] if before is Phase.WITHIN and phase is not Phase.WITHIN else []
    if phase is not before:
        news += [_NEWS[phase]] if phase in _NEWS else []
        news += [Decision.BACK_UNDER] if phase is Phase.WITHIN and before in {Phase.WARNED, Phase.POSTPONED} else []
    kill_in = None if spares else 0.0 if answers else left
    decisions = [_decision(each, quota, case, kill_in) for each in news]
    return replace(case, phase=phase, over_for=0.0 if phase is Phase.WITHIN else case.over_for), decisions


_NEWS: Final = {Phase.LOWERED: Decision.LOWERED, Phase.WARNED: Decision.WARNED}


def _phase_after(case: ContainerState, quota: Quota, rules: DetectorConfig) -> Phase:
    if case.phase is Phase.KILLING:
        return Phase.KILLING
    if case.used_mib <= quota.ceiling_mib:
        return Phase.WITHIN
    if _is_lowered(case):
        return Phase.LOWERED
    if case.phase in {Phase.WITHIN, Phase.OVER, Phase.LOWERED}:
        return Phase.WARNED if case.samples >= rules.samples else Phase.OVER
    return case.phase


def size_of(quota: Quota, rules: DetectorConfig) -> float:
    """Return a container's budget in seconds: one violation shorter than the grace period never uses it up."""
    return quota.grace_seconds + rules.first


def budget_left(state: DetectorState, quota: Quota, now: float, rules: DetectorConfig) -> float:
    """Return the seconds for which a container may be over quota from now on."""
    case = state.of(quota)
    used = budget.refilled(case.used, case.at, now) if case.phase is Phase.WITHIN else case.used
    return 0.0 if budget.answers(state.accounts, quota, now) else _left(quota, used, rules)


def _left(quota: Quota, used: float, rules: DetectorConfig) -> float:
    return min(quota.grace_seconds, max(0.0, size_of(quota, rules) - used))


def _is_due(case: ContainerState, quota: Quota, now: float, rules: DetectorConfig, *, answers: bool) -> bool:
    """Whether nothing but the breaker and the limit of kills stands between a container and its end."""
    if quota.on_exceed is OnExceed.WARN or case.phase in {Phase.WITHIN, Phase.LOWERED, Phase.KILLING}:
        return False
    empty = answers or _left(quota, case.used, rules) <= 0
    return empty and case.samples >= rules.samples and case.spared_until <= now


def _postponed(decision: Decision, quota: Quota, cases: dict[Key, ContainerState]) -> list[KillDecision]:
    """Note in the cases that a container is spared for now; decide it once."""
    case = cases[key_of(quota)]
    cases[key_of(quota)] = replace(case, phase=Phase.POSTPONED)
    return [] if case.phase is Phase.POSTPONED else [_decision(decision, quota, case)]


def _kills(
    due: Sequence[_Due], cases: dict[Key, ContainerState], state: DetectorState, now: float, rules: DetectorConfig
) -> tuple[DetectorState, list[KillDecision]]:
    """Kill as many as the minute allows, the one most over first, and note it in the cases.

    What was killed lately, and a namespace that answers for its time, take nothing from that: where it matters to
    neighbours, nobody waits.
    """
    kills, chosen, decisions = dict(state.kills), set[str](), list[KillDecision]()
    for each in sorted(due, key=lambda each: each.quota.ceiling_mib - cases[key_of(each.quota)].used_mib):
        quota, case = each.quota, cases[key_of(each.quota)]
        if quota.pod_uid in chosen:
            continue  # over on two GPUs, or in two containers: one after the other
        whole = case.killed or budget.answers(state.accounts, quota, now)
        if not whole and len(kills) >= rules.kills:
            decisions += _postponed(Decision.RATE_LIMITED, quota, cases)
            continue
        kill = replace(_decision(Decision.KILL, quota, case), targets=select_targets(quota, each.holders))
        overdrawn = _is_overdrawn(case, state, quota, now, rules)
        decisions.append(replace(kill, at=now, respawns=whole, overdrawn=overdrawn))
        cases[key_of(quota)] = replace(case, phase=Phase.KILLING)
        chosen.add(quota.pod_uid)
        if not whole:
            kills[container_key(quota)] = now
    return replace(state, kills=kills), decisions


def record_kill_result(
    state: DetectorState, quota: Quota, now: float, rules: DetectorConfig, *, acted: bool, back: bool = False,
    reclaimed: bool = False,
) -> DetectorState:  # fmt: skip
    """Take in that acting on a KILL has ended; ``acted`` is false where nothing was done to the container.

    Either way the container is spared for a while, so that what fails is not tried twice a second; not so where it was
    ``back`` within its quota: it would be free to exceed that. A kill uses up the budget, unless it took back borrowed
    memory (``reclaimed``). What did nothing to anybody takes nothing from the most a node makes.
    """
    case, place, kills = state.of(quota), container_key(quota), dict(state.kills)
    if place in kills and not case.killed:  # a repeated kill is not among them
        kills = kills | {place: now} if acted else {each: at for each, at in kills.items() if each != place}
    until = now + (rules.kill_interval if acted else 0.0 if back else rules.cool_down)
    if acted and not reclaimed:
        case = replace(case, killed=True, used=max(case.used, size_of(quota, rules)), at=now)
    cases = {**state.cases, key_of(quota): replace(case, phase=Phase.COOLING_DOWN)}
    spared = {key: replace(each, spared_until=until) for key, each in cases.items() if key[0] == place}
    return replace(state, cases=cases | spared, kills=kills)


def close_breaker(state: DetectorState) -> DetectorState:
    """Close the breaker: everybody has a full budget again."""
    cases = {
        key: ContainerState(used_mib=case.used_mib, phase=case.phase if case.phase is Phase.KILLING else Phase.WITHIN)
        for key, case in state.cases.items()
    }
    return DetectorState(cases=cases, sampled=state.sampled, blind=state.blind)


def recent_kills(state: DetectorState, now: float, rules: DetectorConfig) -> int:
    """Count the kills that count towards the most a node makes."""
    return sum(now - at < rules.window for at in state.kills.values())


def phase(state: DetectorState, quota: Quota, now: float) -> Phase:
    """Say where a container stands."""
    if quota.container_id is None or key_of(quota) not in state.cases:
        return Phase.NOT_STARTED
    case = state.of(quota)
    if case.phase is Phase.COOLING_DOWN and case.spared_until <= now:
        return Phase.OVER
    return case.phase


def _decision(decision: Decision, quota: Quota, case: ContainerState, kill_in: float | None = 0.0) -> KillDecision:
    return KillDecision(
        decision=decision, quota=quota, used_mib=case.used_mib, over_for=case.over_for, kill_in=kill_in
    )  # fmt: skip
