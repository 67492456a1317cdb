"""Who is over quota, for how long, and whether that is enough to act. A pure state machine: time is passed in.

Per container and GPU: sums what all its processes hold, wants several samples in a row before it believes them, lets
the grace period run, and only then decides. A blind moment decides nothing and costs nobody time. One node makes only
so many kills a minute, and one container only one in a while, whatever its restarts are called.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Final

from enforcer.attribute import Identity
from enforcer.model import OnExceed, Quota

Key = tuple[str, str]
"""Container id and GPU UUID."""
Place = tuple[str, str]
"""Pod UID and container name: what stays the same when a container restarts."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One process and the MiB it holds on the GPU in question."""

    identity: Identity
    used_mib: int


Reading = Mapping[str, tuple[Holder, ...]]
"""What one GPU held at one moment: the processes of each container, by container id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How careful to be. Times in seconds.

    ``max_step`` is the most that a single sample may add to the time over quota: if the enforcer was held up, nobody
    knows what happened meanwhile.
    """

    samples: int = 3
    max_step: float = 2.0
    kills: int = 3
    window: float = 60.0
    cool_down: float = 15.0


class Phase(StrEnum):
    """Where a container stands on one GPU."""

    NOT_STARTED = "NotStarted"
    WITHIN = "Within"
    OVER = "Over"
    WARNED = "Warned"
    ACTING = "Acting"
    COOLING_DOWN = "CoolingDown"
    HELD_BACK = "HeldBack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One container on one GPU: samples in a row over quota, seconds over it, when last seen over (``None``: blind)."""

    used_mib: int = 0
    samples: int = 0
    over_for: float = 0.0
    last: float | None = None
    warned: bool = False
    acting: bool = False
    acted: bool = False
    held_back: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """All that the judge remembers: cases, when it decided to kill lately, and until when it lets a place be.

    A place stays in ``cooling`` for the breaker's window after that: who was acted upon lately comes after the others.
    """

    cases: Mapping[Key, Case] = field(default_factory=dict)
    kills: tuple[float, ...] = ()
    cooling: Mapping[Place, float] = field(default_factory=dict)


class Decision(StrEnum):
    """What the judge says."""

    ARMED = "Armed"
    """Over quota in one sample: the grace period has begun."""
    WARNED = "Warned"
    """Over quota in enough samples to be believed."""
    KILL = "Kill"
    HELD_BACK = "HeldBack"
    """Would be killed, had this node not seen too many kills in this minute."""
    BACK_UNDER = "BackUnder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One decision about one container on one GPU.

    ``targets`` are the processes to end, largest first; ``kill_in`` the seconds left, ``None`` where only a warning is
    wanted; ``at`` is when a KILL was decided.
    """

    decision: Decision
    quota: Quota
    used_mib: int
    over_for: float = 0.0
    kill_in: float | None = None
    targets: tuple[Holder, ...] = ()
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Due:
    """A container whose grace is over, and what it holds on the GPU in question."""

    quota: Quota
    holders: tuple[Holder, ...]


def judge(
    state: State, quotas: Sequence[Quota], readings: Mapping[str, Reading | None], now: float, rules: Rules
) -> tuple[State, tuple[Verdict, ...]]:
    """Take in one sample of every GPU.

    Args:
        state: what was remembered.
        quotas: who may hold how much; at most one per container id and GPU. Containers without one are let be.
        readings: by GPU UUID; ``None``, or no entry, where the GPU could not be read.
        now: seconds on a clock that never jumps and goes on while the machine sleeps.
        rules: how careful to be.
    """
    cases: dict[Key, Case] = {}
    verdicts: list[Verdict] = []
    due: list[_Due] = []
    state = replace(
        state,
        kills=tuple(when for when in state.kills if now - when < rules.window),
        cooling={place: until for place, until in state.cooling.items() if until + rules.window > now},
    )
    for quota in quotas:
        if quota.container_id is None:
            continue
        key = _key(quota)
        reading = readings.get(quota.gpu)
        case = state.cases.get(key, Case())
        if reading is None:
            cases[key] = replace(case, last=None)
            continue
        holders = reading.get(quota.container_id, ())
        cases[key], said = _look(case, quota, holders, now, rules)
        verdicts += said
        if _is_due(cases[key], quota, state, now, rules):
            due.append(_Due(quota, holders))
    kills, sentences = _sentences(due, cases, state, now, rules)
    return replace(state, cases=cases, kills=kills), (*verdicts, *sentences)


def settle(state: State, quota: Quota, now: float, rules: Rules, *, acted: bool, decided: float | None = None) -> State:
    """Take in that acting on a KILL has ended; ``acted`` is false where nothing was done to the container.

    Either way the place is let be for the cool-down, so that what fails is not tried twice a second. What did nothing
    to anybody takes nothing from the breaker's budget; ``decided`` is the verdict's ``at``.
    """
    key = _key(quota)
    case = state.cases.get(key)
    cases = state.cases if case is None else {**state.cases, key: replace(case, acting=False, acted=acted)}
    kills = list(state.kills)
    if not acted and decided in kills:
        kills.remove(decided)
    cooling = {**state.cooling, place_of(quota): now + rules.cool_down}
    return replace(state, cases=cases, kills=tuple(kills), cooling=cooling)


def place_of(quota: Quota) -> Place:
    """Name what a cool-down belongs to."""
    return quota.pod_uid, quota.container


def total(holders: Sequence[Holder]) -> int:
    """MiB held together."""
    return sum(holder.used_mib for holder in holders)


def targets(quota: Quota, holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """Choose whom to end: the largest first, until the rest is within the ceiling; all for ``kill-container``."""
    ordered = sorted(holders, key=lambda holder: (-holder.used_mib, holder.identity.pid))
    if quota.on_exceed is OnExceed.KILL_CONTAINER:
        return tuple(ordered)
    chosen: list[Holder] = []
    left = total(ordered)
    for holder in ordered:
        if left <= quota.ceiling_mib:
            break
        chosen.append(holder)
        left -= holder.used_mib
    return tuple(chosen)


def phase(state: State, quota: Quota, now: float) -> Phase:
    """Say where a container stands."""
    case = state.cases.get((quota.container_id or "", quota.gpu))
    if quota.container_id is None or case is None:
        return Phase.NOT_STARTED
    if case.acting:
        return Phase.ACTING
    if case.samples == 0:
        return Phase.WITHIN
    if state.cooling.get(place_of(quota), now) > now:
        return Phase.COOLING_DOWN
    if case.held_back:
        return Phase.HELD_BACK
    return Phase.WARNED if case.warned else Phase.OVER


_SAID: Final = {
    Phase.NOT_STARTED: "has not started",
    Phase.WITHIN: "is within its quota",
    Phase.OVER: "was seen over its quota and is being watched",
    Phase.ACTING: "is over its quota and is being stopped",
    Phase.COOLING_DOWN: "is over its quota and was acted upon a moment ago",
    Phase.HELD_BACK: "is over its quota and is not stopped: too many kills on this node in the last minute",
}


def describe(state: State, quota: Quota, now: float) -> str:
    """Say in a sentence where a container stands and why."""
    case = state.cases.get((quota.container_id or "", quota.gpu), Case())
    where = phase(state, quota, now)
    if where is Phase.WARNED:
        left = kill_in(quota, case)
        said = "is over its quota" + (
            "; only a warning is wanted" if left is None else f", to be stopped in {left:.1f}s"
        )
    else:
        said = _SAID[where]
    return f"{quota.container} holds {case.used_mib} MiB of {quota.memory_mib} MiB and {said}"


def kill_in(quota: Quota, case: Case) -> float | None:
    """Seconds of grace left; ``None`` where only a warning is wanted."""
    return None if quota.on_exceed is OnExceed.WARN else max(0.0, quota.grace_seconds - case.over_for)


def _key(quota: Quota) -> Key:
    return quota.container_id or "", quota.gpu


def _look(case: Case, quota: Quota, holders: Sequence[Holder], now: float, rules: Rules) -> tuple[Case, list[Verdict]]:
    used = total(holders)
    if used > quota.ceiling_mib:
        return _over(_counted(case, used, now, rules), quota, rules)
    said = [Verdict(decision=Decision.BACK_UNDER, quota=quota, used_mib=used, over_for=case.over_for)]
    return Case(used_mib=used, acting=case.acting), said if case.warned and not (case.acting or case.acted) else []


def _counted(case: Case, used: int, now: float, rules: Rules) -> Case:
    step = 0.0 if case.last is None else min(max(now - case.last, 0.0), rules.max_step)
    return replace(case, used_mib=used, samples=case.samples + 1, over_for=case.over_for + step, last=now)


def _over(case: Case, quota: Quota, rules: Rules) -> tuple[Case, list[Verdict]]:
    verdict = _verdict(Decision.ARMED, quota, case)
    said = [verdict] if case.samples == 1 else []
    if case.samples >= rules.samples and not case.warned:
        return replace(case, warned=True), [*said, replace(verdict, decision=Decision.WARNED)]
    return case, said


def _is_due(case: Case, quota: Quota, state: State, now: float, rules: Rules) -> bool:
    """Whether nothing but the breaker stands between a container and its end."""
    if case.samples < rules.samples or case.acting:
        return False
    return kill_in(quota, case) == 0 and state.cooling.get(place_of(quota), now) <= now


def _sentences(
    due: Sequence[_Due], cases: dict[Key, Case], state: State, now: float, rules: Rules
) -> tuple[tuple[float, ...], list[Verdict]]:
    """Kill as many as the breaker lets pass, and note it in the cases; returns the kills it counts, and what is said.

    Who was acted upon longest ago, or never, is first, then who is over for longest: a tenant whose containers are
    ended again and again does not use up the budget that would end another.
    """
    kills, said = state.kills, []
    turn = sorted(due, key=lambda each: (_last_turn(each.quota, state), -cases[_key(each.quota)].over_for))
    for quota, holders in ((each.quota, each.holders) for each in turn):
        case = cases[_key(quota)]
        if len(kills) >= rules.kills:
            said += [] if case.held_back else [_verdict(Decision.HELD_BACK, quota, case)]
            cases[_key(quota)] = replace(case, held_back=True)
        else:
            said.append(replace(_verdict(Decision.KILL, quota, case), targets=targets(quota, holders), at=now))
            cases[_key(quota)] = replace(case, acting=True, held_back=False)
            kills = (*kills, now)
    return kills, said


def _last_turn(quota: Quota, state: State) -> float:
    return state.cooling.get(place_of(quota), -inf)


def _verdict(decision: Decision, quota: Quota, case: Case) -> Verdict:
    return Verdict(
        decision=decision, quota=quota, used_mib=case.used_mib, over_for=case.over_for, kill_in=kill_in(quota, case)
    )
