"""Detect containers over quota, and decide when to kill. A state machine; time is an argument. Pure.

Per container and GPU: sums what all its processes hold, wants several samples in a row before it believes them, and
lets the grace period run. A sample without a reading decides nothing; after a long gap a new grace period begins.
Violations that end in time add up to a debt (``enforcer.detection.debt``). One node makes so many kills of a namespace
a minute. Where most of a node would be killed, the breaker opens (``enforcer.detection.storm``).
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf

from enforcer.attribution.snapshot import ProcessUsage, UsageByContainer, total_mib
from enforcer.detection import debt as debts
from enforcer.detection import doubt, fresh, storm
from enforcer.detection.debt import Debt, DebtKey
from enforcer.detection.kill_history import ContainerKey, RecentKill, excluding, prune_older, tenant_of, with_time
from enforcer.detection.targets import select_targets
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, Key, KillDecision, Phase, ViolationState
from enforcer.quota.types import OnExceed, Quota


@dataclass(frozen=True, slots=True)
class _Due:
    """A container whose grace is over, and what it holds on the GPU in question."""

    quota: Quota
    holders: tuple[ProcessUsage, ...]


def evaluate(
    state: DetectorState, quotas: Sequence[Quota], readings: Mapping[str, UsageByContainer | None], now: float,
    rules: DetectorConfig, *, killing: AbstractSet[ContainerKey] = frozenset(), only: AbstractSet[str] | None = None,
) -> tuple[DetectorState, tuple[KillDecision, ...]]:  # fmt: skip
    """Take in one sample of every GPU, or of some.

    Args:
        state: what was remembered.
        quotas: at most one per container id and GPU. Containers without one are ignored.
        readings: by GPU UUID; ``None``, or no entry, where the GPU could not be read.
        now: seconds on a clock that never jumps and goes on while the machine sleeps.
        rules: how careful to be.
        killing: containers with a kill under way, also where the container has restarted meanwhile.
        only: UUIDs of the GPUs that were sampled, where the others were left out: what is known of those stays.
    """
    cases, within = _left_out(state, quotas, only)
    owed = dict[DebtKey, Debt]()
    decisions, due = list[KillDecision](), list[_Due]()
    busy = _busy(state, quotas) | killing
    state = replace(_aged(state, busy, now, rules), thresholds=doubt.followed(state.thresholds, quotas, now))
    exceeding, ended = namespaces_exceeding(state), state.ended
    for quota in quotas:
        if quota.container_id is None or (only is not None and quota.gpu not in only):
            continue
        key, place = _key(quota), container_key(quota)
        reading = readings.get(quota.gpu)
        case = state.cases.get(key, ViolationState())
        since = within.get(place, fresh.known_since(state.within, place, now))
        if reading is None:
            cases[key] = replace(case, blind=True)
            owed[debts.key_of(quota)] = debts.pause(state.debts.get(debts.key_of(quota)), now)
            within[place] = fresh.within_since(since, now, within=False)
            continue
        holders = reading.get(quota.container_id, ())
        cases[key], more = _look(case, quota, holders, now, rules)
        decisions += more
        within[place] = fresh.within_since(since, now, within=not cases[key].samples)
        if _ended_over(case, cases[key], quota) and now - since < fresh.SETTLED:
            ended = (*ended, RecentKill(now, quota.namespace, place))
        debt = _charged(case, cases[key], quota, state, now, rules)
        new = quota.namespace in exceeding and fresh.is_fresh(within, place, now)
        cases[key], owed[debts.key_of(quota)], more = _indebted(cases[key], debt, quota, now, rules, new=new)
        decisions += more
        if place not in busy and _is_due(cases[key], debt, quota, state, now, rules):
            due.append(_Due(quota, holders))
    owed = debts.aged({**state.debts, **owed}, now, rules.debt)
    state = replace(state, cases=cases, debts=owed, within=within, ended=ended)
    state = _breaker(state, due, quotas, now, rules)
    pods = {pod for pod, _ in busy}  # one attempt on a pod at a time: none keeps the others waiting
    state, kills = _chosen(state, due, pods, cases, now, rules)
    return state, (*decisions, *kills)


def _left_out(
    state: DetectorState, quotas: Sequence[Quota], only: AbstractSet[str] | None
) -> tuple[dict[Key, ViolationState], dict[ContainerKey, float]]:
    """Return what stays known of GPUs that were not sampled: cases, and since when places are within their quota."""
    if only is None:
        return {}, {}
    places = {container_key(each) for each in quotas if each.gpu not in only}
    cases = {key: case for key, case in state.cases.items() if key[1] not in only}
    return cases, {place: since for place, since in (state.within or {}).items() if place in places}


def _busy(state: DetectorState, quotas: Sequence[Quota]) -> frozenset[ContainerKey]:
    """Return the containers that a kill is under way for."""
    return frozenset(container_key(each) for each in quotas if state.cases.get(_key(each), ViolationState()).acting)


def _chosen(
    state: DetectorState, due: Sequence[_Due], pods: AbstractSet[str], cases: dict[Key, ViolationState],
    now: float, rules: DetectorConfig,
) -> tuple[DetectorState, list[KillDecision]]:  # fmt: skip
    """Return the kills of those that are due, except of pods that a kill is under way for, and what they change."""
    if state.open or state.cases is not cases:  # or has just closed by itself: all begin a new grace period
        return state, _suspended(due, cases) if state.open else []
    return _kills([e for e in due if e.quota.pod_uid not in pods], cases, state, now, rules)


def record_kill_result(
    state: DetectorState, quota: Quota, now: float, rules: DetectorConfig, *, acted: bool
) -> DetectorState:
    """Take in that acting on a KILL has ended; ``acted`` is false where nothing was done to the container.

    Either way the place is spared for a while, so that what fails is not tried twice a second. What did nothing to
    anybody takes nothing from the breaker's budget.
    """
    key, place = _key(quota), container_key(quota)
    case = state.cases.get(key)
    cases = state.cases if case is None else {**state.cases, key: replace(case, acting=False, acted=acted)}
    kills = with_time(state.kills, {place}, now) if acted else excluding(state.kills, place)
    until = now + (rules.kill_interval if acted else rules.cool_down)
    after = replace(state, cases=cases, kills=kills, cooling={**state.cooling, place: until})
    return replace(after, debts=debts.settled(state.debts, quota, now)) if acted else after


def close_breaker(state: DetectorState) -> DetectorState:
    """Close the breaker: kills and debts are forgotten, and everybody has a full grace period again."""
    return replace(_without_kills(state), kills=(), debts={}, trips={}, ended=())


def _without_kills(state: DetectorState) -> DetectorState:
    cases = {key: ViolationState(used_mib=case.used_mib, acting=case.acting) for key, case in state.cases.items()}
    return replace(state, cases=cases, open=False, opening=None)


def recent_kills(
    state: DetectorState, now: float, rules: DetectorConfig, namespace: str | None = None
) -> tuple[RecentKill, ...]:
    """Pick the kills that count towards the most a node makes, of one namespace or of all, in order."""
    kills = (kill for kill in state.kills if not kill.free and namespace in {None, kill.namespace})
    return prune_older(tuple(kills), rules.window, now)


def namespaces_exceeding(state: DetectorState) -> frozenset[str]:
    """Name the namespaces of which so many pods were killed lately that new ones have no grace period."""
    return fresh.exceeding((*state.kills, *state.ended))


def has_no_grace(state: DetectorState, quota: Quota, now: float) -> bool:
    """Return whether a container is fresh and of such a namespace."""
    return fresh.is_fresh(state.within or {}, container_key(quota), now) and quota.namespace in namespaces_exceeding(
        state
    )


def container_key(quota: Quota) -> ContainerKey:
    """Name what a cool-down belongs to."""
    return quota.pod_uid, quota.container


def phase(state: DetectorState, quota: Quota, now: float) -> Phase:
    """Say where a container stands."""
    case = state.cases.get((quota.container_id or "", quota.gpu))
    if quota.container_id is None or case is None:
        return Phase.NOT_STARTED
    if case.acting:
        return Phase.KILLING
    if case.samples == 0:
        return Phase.WITHIN
    if state.cooling.get(container_key(quota), now) > now:
        return Phase.COOLING_DOWN
    if case.postponed:
        return Phase.POSTPONED
    return Phase.WARNED if case.warned else Phase.OVER


def grace_remaining(quota: Quota, case: ViolationState) -> float | None:
    """Seconds of grace left; ``None`` where only a warning is wanted."""
    if quota.on_exceed is OnExceed.WARN:
        return None
    return 0.0 if case.graceless else max(0.0, quota.grace_seconds - case.over_for)


def _aged(state: DetectorState, busy: AbstractSet[ContainerKey], now: float, rules: DetectorConfig) -> DetectorState:
    """Forget what counts no more. What is still being carried out is of now."""
    kills = prune_older(with_time(state.kills, busy, now), rules.storm_window, now)
    ended = prune_older(state.ended, rules.storm_window, now)
    cooling = {place: until for place, until in state.cooling.items() if until + rules.window > now}
    return replace(state, kills=kills, ended=ended, cooling=cooling, trips=storm.remembered(state.trips, now))


def _key(quota: Quota) -> Key:
    return quota.container_id or "", quota.gpu


def _look(
    case: ViolationState, quota: Quota, holders: Sequence[ProcessUsage], now: float, rules: DetectorConfig
) -> tuple[ViolationState, list[KillDecision]]:
    used = total_mib(holders)
    if used > quota.ceiling_mib:
        return _over(_counted(case, quota, holders, now, rules), quota, rules)
    decisions = [KillDecision(decision=Decision.BACK_UNDER, quota=quota, used_mib=used, over_for=case.over_for)]
    return ViolationState(used_mib=used, acting=case.acting), decisions if case.warned and not (
        case.acting or case.acted
    ) else []


def _ended_over(before: ViolationState, case: ViolationState, quota: Quota) -> bool:
    """Whether a container that was over quota, and would have been killed, holds nothing any more."""
    killed = before.acting or before.acted
    return before.warned and not killed and not case.used_mib and quota.on_exceed is not OnExceed.WARN


def _counted(
    case: ViolationState, quota: Quota, holders: Sequence[ProcessUsage], now: float, rules: DetectorConfig
) -> ViolationState:
    inode = max((each.identity.cgroup_inode or 0 for each in holders), default=0) or None
    lenient = quota.on_exceed is OnExceed.WARN
    if _is_stale(case, inode, now, rules) or (case.lenient and not lenient):
        case = ViolationState(acting=case.acting, acted=case.acted)
    step = 0.0 if case.last is None or case.blind else max(now - case.last, 0.0)
    return replace(
        case, used_mib=total_mib(holders), samples=case.samples + 1, over_for=case.over_for + step, last=now,
        blind=False, cgroup_inode=inode or case.cgroup_inode, lenient=lenient,
    )  # fmt: skip


def _is_stale(case: ViolationState, inode: int | None, now: float, rules: DetectorConfig) -> bool:
    """Whether what is known is of too long ago, or of a cgroup that is no more."""
    another = None not in {inode, case.cgroup_inode} and inode != case.cgroup_inode
    return another or (case.last is not None and now - case.last > rules.max_gap)


def _over(case: ViolationState, quota: Quota, rules: DetectorConfig) -> tuple[ViolationState, list[KillDecision]]:
    started = _decision(Decision.GRACE_STARTED, quota, case)
    decisions = [started] if case.samples == 1 else []
    if case.samples >= rules.samples and not case.warned:
        return replace(case, warned=True), [*decisions, replace(started, decision=Decision.WARNED)]
    return case, decisions


def _charged(
    before: ViolationState, case: ViolationState, quota: Quota, state: DetectorState, now: float, rules: DetectorConfig
) -> Debt:
    """Return the debt after a sample. Where only a warning is wanted nobody owes anything."""
    debt = state.debts.get(debts.key_of(quota)) or Debt(at=now)
    if not case.samples or quota.on_exceed is OnExceed.WARN:
        return debts.resume(debt, quota, now, rules.debt)
    step = None if case.samples == 1 else case.over_for - before.over_for
    return debts.charge(debt, quota, case.used_mib, step, now, rules.debt)


def _indebted(
    case: ViolationState, debt: Debt, quota: Quota, now: float, rules: DetectorConfig, *, new: bool
) -> tuple[ViolationState, Debt, list[KillDecision]]:
    """Take the grace period from a container over quota with too much debt, or warn it; ``new`` ones have none."""
    if not case.samples:
        return case, debt, []
    graceless = new or debts.killed_lately(debt, now, rules.debt) or debts.is_used_up(debt, quota, now, rules.debt)
    case = replace(case, graceless=graceless)
    earlier = debt.seconds > case.over_for + rules.debt.first
    if debt.warned or not earlier or debt.seconds < rules.debt.credit_of(quota) / 2:
        return case, debt, []
    return case, replace(debt, warned=True), [replace(_decision(Decision.IN_DEBT, quota, case), debt=debt.seconds)]


def _is_due(
    case: ViolationState, debt: Debt, quota: Quota, state: DetectorState, now: float, rules: DetectorConfig
) -> bool:
    """Whether nothing but the breaker stands between a container and its end."""
    enough = max(case.samples, debt.samples if case.graceless else 0) >= rules.samples
    return enough and grace_remaining(quota, case) == 0 and state.cooling.get(container_key(quota), now) <= now


def _breaker(
    state: DetectorState, due: Sequence[_Due], quotas: Sequence[Quota], now: float, rules: DetectorConfig
) -> DetectorState:
    """Open the breaker, keep it as it is, or close what a storm has opened."""
    over = {tenant_of(quota) for quota in quotas if state.cases.get(_key(quota), ViolationState()).samples}
    present = storm.Present.of(quotas, over)
    if state.open:
        opening = None if state.opening is None else storm.watched(state.opening, present, now)
        return (
            _without_kills(state) if state.opening is not None and opening is None else replace(state, opening=opening)
        )
    wanted = {tenant_of(each.quota) for each in due if each.quota.granted}
    doubtful = doubt.doubted(quotas, state.thresholds) if wanted else frozenset()
    opening = storm.opened(wanted, present, state.kills, now, rules.kills, rules.window, doubtful)
    if opening is None or wanted <= state.trips.keys():
        return replace(state, opening=None)
    return replace(state, open=True, opening=opening, trips={**state.trips, **dict.fromkeys(opening.by, now)})


def _suspended(due: Sequence[_Due], cases: dict[Key, ViolationState]) -> list[KillDecision]:
    return [decision for each in due for decision in _postponed(Decision.BREAKER_OPEN, each.quota, cases)]


def _postponed(decision: Decision, quota: Quota, cases: dict[Key, ViolationState]) -> list[KillDecision]:
    """Note in the cases that a container is spared for now; decide it once."""
    case = cases[_key(quota)]
    cases[_key(quota)] = replace(case, postponed=True)
    return [] if case.postponed else [_decision(decision, quota, case)]


def _kills(
    due: Sequence[_Due], cases: dict[Key, ViolationState], state: DetectorState, now: float, rules: DetectorConfig
) -> tuple[DetectorState, list[KillDecision]]:
    """Kill as many as the minute allows, and note it in the cases; returns the state, and the decisions.

    Who was acted upon longest ago, or never, is first, then who is over for longest: a tenant whose containers are
    ended again and again does not use up the budget that would end another. A repeated kill takes nothing from it, nor
    does one of a fresh container without grace period.
    """
    kills, chosen, decisions = state.kills, set[str](), list[KillDecision]()
    room = {name: rules.kills - len(recent_kills(state, now, rules, name)) for name in {e.quota.namespace for e in due}}
    turn = sorted(due, key=lambda e: (state.cooling.get(container_key(e.quota), -inf), -cases[_key(e.quota)].over_for))
    for quota, holders in ((each.quota, each.holders) for each in turn):
        case, place = cases[_key(quota)], container_key(quota)
        if quota.pod_uid in chosen:
            continue  # over on two GPUs, or in two containers: one after the other
        debt = state.debts.get(debts.key_of(quota), Debt())
        again = debts.killed_lately(debt, now, rules.debt)
        free = again or has_no_grace(state, quota, now)
        if room[quota.namespace] <= 0 and not free:
            decisions += _postponed(Decision.RATE_LIMITED, quota, cases)
        else:
            kill = replace(_decision(Decision.KILL, quota, case), debt=debt.seconds if debt.warned else 0.0)
            decisions.append(replace(kill, targets=select_targets(quota, holders), at=now, respawns=again))
            cases[_key(quota)] = replace(case, acting=True, postponed=False)
            room[quota.namespace] -= not free
            chosen.add(quota.pod_uid)
            kills = (*kills, RecentKill(now, quota.namespace, place, free))
    return replace(state, kills=kills), decisions


def _decision(decision: Decision, quota: Quota, case: ViolationState) -> KillDecision:
    return KillDecision(
        decision=decision,
        quota=quota,
        used_mib=case.used_mib,
        over_for=case.over_for,
        kill_in=grace_remaining(quota, case),
    )
