"""What the detector says and remembers, to the last field, and where exactly its limits lie."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from enforcer.attribution.snapshot import ProcessUsage, UsageByContainer, total_mib
from enforcer.detection.debt import Debt
from enforcer.detection.detector import (
    close_breaker,
    container_key,
    evaluate,
    grace_remaining,
    phase,
    recent_kills,
    record_kill_result,
)
from enforcer.detection.kill_history import ContainerKey, RecentKill
from enforcer.detection.storm import Opening
from enforcer.detection.targets import select_targets
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, Key, KillDecision, Phase, ViolationState
from enforcer.quota.types import OnExceed, Quota
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, holder, neighbour, quota

RULES = DetectorConfig()
KEY: Key = (CONTAINER, GPU)
OTHER_KEY: Key = (NEIGHBOUR, GPU)
OVER, SMALL = holder(10, 5000), holder(11, 7)
PLACE: ContainerKey = container_key(quota())
RATE = 10.0 / 300.0


def _look(
    state: DetectorState, now: float, *quotas: Quota, rules: DetectorConfig = RULES, **readings: UsageByContainer | None
) -> tuple[DetectorState, list[KillDecision]]:
    """``over``: what the first GPU holds; ``other``: what the second does."""
    known = {GPU: readings["over"]} if "over" in readings else {}
    known |= {OTHER_GPU: readings["other"]} if "other" in readings else {}
    state, decisions = evaluate(state, quotas, known, now, rules)
    return replace(state, within=None, thresholds={}), list(decisions)


def _usages(*holders: ProcessUsage) -> UsageByContainer:
    found: dict[str, tuple[ProcessUsage, ...]] = {}
    for each in holders:
        container = each.identity.owner.container_id if each.identity.owner else ""
        found[container] = (*found.get(container, ()), each)
    return found


def _due(*, over_for: float = 5.0, last: float = 99.5, **changes: object) -> ViolationState:
    case = ViolationState(used_mib=5000, samples=9, over_for=over_for, last=last, warned=True, cgroup_inode=7)
    return replace(case, **changes)  # type: ignore[arg-type]


def test_from_the_first_sample_to_the_kill_every_word_is_exact() -> None:
    one = quota(grace_seconds=1.5)
    state, decisions = _look(DetectorState(), 100.0, one, over=_usages(OVER, SMALL))
    case = ViolationState(used_mib=5007, samples=1, over_for=0.0, last=100.0, cgroup_inode=7)
    owed = {(PLACE, GPU): Debt(seconds=0.5 * 911 / 4096, at=100.0, samples=1, rate=RATE)}
    assert state == DetectorState(cases={KEY: case}, debts=owed)
    armed = KillDecision(decision=Decision.GRACE_STARTED, quota=one, used_mib=5007, over_for=0.0, kill_in=1.5)
    assert decisions == [armed]
    state, decisions = _look(state, 100.5, one, over=_usages(OVER, SMALL))
    owed = {(PLACE, GPU): Debt(seconds=911 / 4096, at=100.5, samples=2, rate=RATE)}
    assert (state, decisions) == (
        DetectorState(cases={KEY: replace(case, samples=2, over_for=0.5, last=100.5)}, debts=owed),
        [],
    )
    state, decisions = _look(state, 101.0, one, over=_usages(OVER))
    case = replace(case, used_mib=5000, samples=3, over_for=1.0, last=101.0, warned=True)
    owed = {(PLACE, GPU): Debt(seconds=(911 + 452) / 4096, at=101.0, samples=3, rate=RATE)}
    assert state == DetectorState(cases={KEY: case}, debts=owed)
    warned = KillDecision(decision=Decision.WARNED, quota=one, used_mib=5000, over_for=1.0, kill_in=0.5)
    assert decisions == [warned]
    state, decisions = _look(state, 101.5, one, over=_usages(SMALL, OVER))
    case = replace(case, used_mib=5007, samples=4, over_for=1.5, last=101.5, acting=True)
    owed = {(PLACE, GPU): Debt(seconds=(911 + 452 + 455.5) / 4096, at=101.5, samples=4, rate=RATE)}
    assert state == DetectorState(cases={KEY: case}, kills=(RecentKill(101.5, "asr", PLACE),), debts=owed)
    assert decisions == [
        replace(warned, decision=Decision.KILL, used_mib=5007, over_for=1.5, kill_in=0.0, targets=(OVER,), at=101.5)
    ]


def test_of_who_came_back_it_is_reported_how_much_it_holds_now_and_how_long_it_was_over() -> None:
    state, decisions = _look(DetectorState(cases={KEY: _due(over_for=3.0)}), 100.0, quota(), over=_usages(SMALL))
    assert state == DetectorState(cases={KEY: ViolationState(used_mib=7)})
    assert decisions == [KillDecision(decision=Decision.BACK_UNDER, quota=quota(), used_mib=7, over_for=3.0)]


@pytest.mark.parametrize("change", [{"warned": False}, {"acting": True}, {"acted": True}], ids=str)
def test_no_relief_is_reported_to_who_was_not_warned_or_was_acted_upon(change: dict[str, bool]) -> None:
    case = _due(**change)
    state, decisions = _look(DetectorState(cases={KEY: case}), 100.0, quota(), over=_usages(SMALL))
    assert (state.cases, decisions) == ({KEY: ViolationState(used_mib=7, acting=case.acting)}, [])


def test_of_a_container_that_holds_nothing_nothing_is_remembered() -> None:
    assert _look(DetectorState(), 100.0, quota(), over={}) == (DetectorState(cases={KEY: ViolationState()}), [])


def test_a_blind_look_keeps_everything_and_notes_that_it_was_blind() -> None:
    state = DetectorState(cases={KEY: _due(over_for=1.0)})
    blind = DetectorState(cases={KEY: _due(over_for=1.0, blind=True)})
    assert _look(state, 100.0, quota(), over=None) == (blind, [])
    assert _look(state, 100.0, quota(), other={}) == (blind, [])
    seen, _ = _look(blind, 100.5, quota(), over=_usages(OVER))
    assert seen.cases[KEY] == _due(over_for=1.0, last=100.5, samples=10), "the time meanwhile costs nobody"


def test_one_whose_gpu_cannot_be_read_keeps_nobody_else_from_being_evaluated() -> None:
    quotas = (quota(gpu=OTHER_GPU), quota(container_id=None, container="next"), neighbour())
    state, decisions = _look(DetectorState(), 100.0, *quotas, over=_usages(holder(20, 9000, NEIGHBOUR)))
    assert [each.quota for each in decisions] == [quotas[2]]
    assert set(state.cases) == {(CONTAINER, OTHER_GPU), OTHER_KEY}


@pytest.mark.parametrize(("inode", "samples"), [(7, 10), (None, 10), (8, 1), (0, 10)])
def test_the_cgroup_is_that_of_any_of_its_processes_that_can_be_seen(inode: int | None, samples: int) -> None:
    moved = replace(OVER, identity=replace(OVER.identity, cgroup_inode=inode))
    unseen = replace(SMALL, identity=replace(SMALL.identity, cgroup_inode=None))
    for usages in ((moved, unseen), (unseen, moved)):
        state, _ = _look(DetectorState(cases={KEY: _due(over_for=1.0)}), 100.0, quota(), over=_usages(*usages))
        case = state.cases[KEY]
        assert (case.samples, case.cgroup_inode) == (samples, inode or 7)
        assert case.over_for == (1.5 if samples == 10 else 0.0)


@pytest.mark.parametrize("flag", ["acting", "acted"])
def test_what_was_done_to_a_container_outlives_a_gap(flag: str) -> None:
    state, _ = _look(DetectorState(cases={KEY: _due(**{flag: True})}), 200.0, quota(), over=_usages(OVER))
    assert state.cases[KEY] == replace(
        ViolationState(used_mib=5000, samples=1, last=200.0, cgroup_inode=7),
        **{flag: True},
    )


@pytest.mark.parametrize(("gap", "samples"), [(10.0, 10), (10.25, 1)])
def test_a_gap_counts_up_to_its_limit(gap: float, samples: int) -> None:
    state, _ = _look(
        DetectorState(cases={KEY: _due(over_for=0.0, last=100.0)}), 100.0 + gap, quota(), over=_usages(OVER)
    )
    assert state.cases[KEY].samples == samples


def test_a_clock_that_goes_back_charges_nothing() -> None:
    state, _ = _look(DetectorState(cases={KEY: _due(over_for=1.0, last=100.0)}), 99.0, quota(), over=_usages(OVER))
    assert (state.cases[KEY].over_for, state.cases[KEY].last) == (1.0, 99.0)


def test_enough_samples_are_enough_and_one_fewer_is_not() -> None:
    for samples, decided in ((1, []), (2, [Decision.WARNED, Decision.KILL])):
        case = _due(samples=samples, warned=False)
        _, decisions = _look(DetectorState(cases={KEY: case}), 100.0, quota(), over=_usages(OVER))
        assert [each.decision for each in decisions] == decided


@pytest.mark.parametrize(("over_for", "left"), [(0.0, 5.0), (4.75, 0.25), (5.0, 0.0), (9.0, 0.0)])
def test_grace_runs_down_to_nothing_and_no_further(over_for: float, left: float) -> None:
    assert grace_remaining(quota(), ViolationState(over_for=over_for)) == left
    assert grace_remaining(quota(on_exceed=OnExceed.WARN), ViolationState(over_for=over_for)) is None


@pytest.mark.parametrize(("until", "killed"), [(99.0, True), (100.0, True), (100.25, False)])
def test_a_place_that_cools_down_is_let_be_until_it_has(until: float, *, killed: bool) -> None:
    _, decisions = _look(DetectorState(cases={KEY: _due()}, cooling={PLACE: until}), 100.0, quota(), over=_usages(OVER))
    assert [each.decision for each in decisions] == ([Decision.KILL] if killed else [])


@pytest.mark.parametrize(("until", "kept"), [(40.0, False), (40.25, True), (130.0, True)])
def test_who_was_acted_upon_is_remembered_for_a_minute_after_its_cool_down(until: float, *, kept: bool) -> None:
    state, _ = _look(DetectorState(cooling={("z", "model"): until}), 100.0)
    assert state.cooling == ({("z", "model"): until} if kept else {})


@pytest.mark.parametrize(("at", "kept"), [(400.0, False), (400.25, True)])
def test_kills_are_remembered_as_long_as_they_count_towards_a_storm(at: float, *, kept: bool) -> None:
    kill = RecentKill(at, "asr", ("z", "model"))
    state, _ = _look(DetectorState(kills=(kill,), ended=(kill,)), 1000.0)
    assert (state.kills, state.ended) == (((kill,), (kill,)) if kept else ((), ()))


def test_of_those_the_last_minutes_count_towards_the_most_a_node_makes() -> None:
    old, new = RecentKill(40.0, "asr", PLACE), RecentKill(40.25, "asr", PLACE)
    assert recent_kills(DetectorState(kills=(old, new)), 100.0, RULES) == (new,)


def test_where_it_stands_is_reported_by_the_first_thing_that_holds() -> None:
    one, known = quota(), {KEY: _due(postponed=True, acting=True)}
    cooling = {PLACE: 100.5}
    found = [
        phase(DetectorState(), one, 100.0),
        phase(DetectorState(cases=known), quota(container_id=None), 100.0),
        phase(DetectorState(cases={("", GPU): _due()}), quota(container_id=None), 100.0),
        phase(DetectorState(cases=known, cooling=cooling), one, 100.0),
        phase(DetectorState(cases={KEY: ViolationState(used_mib=7, postponed=True)}, cooling=cooling), one, 100.0),
        phase(DetectorState(cases={KEY: _due(postponed=True)}, cooling=cooling), one, 100.0),
        phase(DetectorState(cases={KEY: _due(postponed=True)}, cooling=cooling), one, 100.5),
        phase(DetectorState(cases={KEY: _due()}), one, 100.0),
        phase(DetectorState(cases={KEY: _due(warned=False)}), one, 100.0),
        phase(DetectorState(cases={KEY: _due(samples=1, warned=False)}), one, 100.0),
    ]
    assert found == [
        Phase.NOT_STARTED, Phase.NOT_STARTED, Phase.NOT_STARTED, Phase.KILLING, Phase.WITHIN, Phase.COOLING_DOWN,
        Phase.POSTPONED, Phase.WARNED, Phase.OVER, Phase.OVER,
    ]  # fmt: skip


def test_closing_the_breaker_forgets_all_but_what_is_kept_and_who_is_acted_upon() -> None:
    state = DetectorState(
        cases={KEY: _due(postponed=True, acting=True), OTHER_KEY: _due(acted=True, blind=True)},
        kills=(RecentKill(9.0, "asr", PLACE),), cooling={PLACE: 20.0}, open=True,
        ended=(RecentKill(9.0, "asr", PLACE),), debts={(PLACE, GPU): Debt(seconds=9.0)}, trips={("asr", PLACE): 9.0},
        opening=Opening(by=frozenset(), pods=frozenset()),
    )  # fmt: skip
    assert close_breaker(state) == DetectorState(
        cases={KEY: ViolationState(used_mib=5000, acting=True), OTHER_KEY: ViolationState(used_mib=5000)},
        cooling={PLACE: 20.0},
    )


@pytest.mark.parametrize(("rules", "until"), [(RULES, 111.0), (replace(RULES, kill_interval=40.0), 150.0)])
def test_who_was_acted_upon_is_let_be_from_the_end_of_it_which_is_when_it_counts(
    rules: DetectorConfig, until: float
) -> None:
    before = (RecentKill(90.0, "asr", PLACE), RecentKill(100.0, "asr", PLACE), RecentKill(101.0, "asr", ("z", "m")))
    state = DetectorState(cases={KEY: _due(acting=True)}, kills=before, cooling={("z", "m"): 1.0})
    assert record_kill_result(state, quota(), 110.0, rules, acted=True) == DetectorState(
        cases={KEY: _due(acted=True)}, kills=(before[0], RecentKill(110.0, "asr", PLACE), before[2]),
        cooling={("z", "m"): 1.0, PLACE: until}, debts={(PLACE, GPU): Debt(at=110.0, killed=110.0)},
    )  # fmt: skip


def test_who_was_not_acted_upon_is_let_be_for_its_cool_down_alone_and_costs_no_kill() -> None:
    before = (RecentKill(90.0, "asr", PLACE), RecentKill(100.0, "asr", PLACE), RecentKill(101.0, "asr", ("z", "m")))
    state = DetectorState(cases={KEY: _due(acting=True, acted=True), OTHER_KEY: _due()}, kills=before)
    assert record_kill_result(state, quota(), 110.0, RULES, acted=False) == DetectorState(
        cases={KEY: _due(), OTHER_KEY: _due()}, kills=(before[0], before[2]), cooling={PLACE: 125.0}
    )


def test_what_is_being_carried_out_counts_as_of_now_however_long_it_takes() -> None:
    before = (RecentKill(90.0, "asr", PLACE), RecentKill(100.0, "asr", PLACE), RecentKill(101.0, "asr", ("z", "m")))
    state = DetectorState(cases={KEY: _due(acting=True)}, kills=before)
    later, _ = evaluate(state, [quota()], {}, 900.0, RULES)
    assert later.kills == (RecentKill(900.0, "asr", PLACE),)


def test_who_is_killed_is_not_sentenced_again_though_the_container_has_restarted() -> None:
    state = DetectorState(cases={KEY: _due()}, kills=(RecentKill(100.0, "asr", PLACE),))
    reading = {GPU: {CONTAINER: (OVER,)}}
    later, decisions = evaluate(state, [quota(grace_seconds=0.0)], reading, 101.0, RULES, killing={PLACE})
    assert (decisions, later.kills) == ((), (RecentKill(101.0, "asr", PLACE),))
    _, decisions = evaluate(state, [quota(grace_seconds=0.0)], reading, 101.0, RULES)
    assert [each.decision for each in decisions] == [Decision.KILL]


def test_a_process_exactly_at_what_is_left_is_let_be() -> None:
    usages = [holder(1, 4096), holder(2, 1)]
    assert select_targets(quota(), usages) == (usages[0],)
    assert select_targets(quota(), usages[:1]) == ()
    assert total_mib(usages) == 4097


def test_of_two_that_hold_as_much_the_lower_pid_goes_first() -> None:
    usages = [holder(3, 3000), holder(2, 3000)]
    assert select_targets(quota(), usages) == (usages[1],)


def _crowd(size: int, namespace: str = "asr", first: int = 1, **changes: object) -> list[Quota]:
    return [
        quota(container_id=f"{n:064x}", pod_uid=f"pod-{n}", namespace=namespace, **changes)
        for n in range(first, first + size)
    ]


def _cases(quotas: list[Quota], **changes: object) -> Mapping[Key, ViolationState]:
    return {(each.container_id or "", each.gpu): _due(**changes) for each in quotas}  # type: ignore[arg-type]


def _all_over(quotas: list[Quota]) -> UsageByContainer:
    return {each.container_id or "": (holder(n + 1, 9000, each.container_id or "", each.pod_uid),)
            for n, each in enumerate(quotas)}  # fmt: skip


def _decided(
    state: DetectorState, quotas: list[Quota], over: list[Quota], now: float = 100.0
) -> tuple[DetectorState, list[str]]:
    state, decisions = _look(state, now, *quotas, over=_all_over(over))
    return state, [str(each.decision) for each in decisions]


def test_room_is_left_in_a_minute_for_as_many_kills_as_there_were_not() -> None:
    greedy, modest = _crowd(3), _crowd(9, "tts", 50)
    for earlier, killed in ((0, 3), (1, 2), (2, 1), (3, 0)):
        state = DetectorState(
            cases=_cases(greedy), kills=tuple(RecentKill(90.0, "asr", (f"g{n}", "m")) for n in range(earlier))
        )
        state, decisions = _decided(state, greedy + modest, greedy)
        assert (decisions.count("Kill"), decisions.count("RateLimited")) == (killed, 3 - killed)
        assert len(state.kills) == earlier + killed
        assert sum(case.postponed for case in state.cases.values()) == 3 - killed


def test_that_one_is_kept_back_is_reported_once_with_what_it_holds() -> None:
    (greedy,), modest = _crowd(1), _crowd(9, "tts", 50)
    kills = tuple(RecentKill(90.0, "asr", (f"g{n}", "m")) for n in range(3))
    key = (greedy.container_id or "", GPU)
    state, decisions = _look(
        DetectorState(cases={key: _due()}, kills=kills), 100.0, greedy, *modest, over=_all_over([greedy])
    )
    expected = KillDecision(decision=Decision.RATE_LIMITED, quota=greedy, used_mib=9000, over_for=5.5, kill_in=0.0)
    assert decisions == [expected]
    state, decisions = _look(state, 100.5, greedy, *modest, over=_all_over([greedy]))
    assert decisions == []
    state, decisions = _look(state, 151.0, greedy, *modest, over=_all_over([greedy]))
    assert [each.decision for each in decisions] == [Decision.GRACE_STARTED], "a gap that long begins anew"


def test_one_that_was_kept_back_and_is_killed_then_is_kept_back_no_longer() -> None:
    (greedy,), modest = _crowd(1), _crowd(9, "tts", 50)
    key = (greedy.container_id or "", GPU)
    state, decisions = _decided(DetectorState(cases={key: _due(postponed=True)}), [greedy, *modest], [greedy])
    assert decisions == ["Kill"]
    assert (state.cases[key].acting, state.cases[key].postponed) == (True, False)


def test_who_was_acted_upon_longest_ago_is_first_then_who_is_over_for_longest() -> None:
    greedy, modest = _crowd(4), _crowd(9, "tts", 50)
    cases = {(each.container_id or "", GPU): _due(over_for=5.0 + n) for n, each in enumerate(greedy)}
    cooling = {container_key(greedy[3]): 99.0, container_key(greedy[2]): 98.0}
    _, decisions = _look(DetectorState(cases=cases, cooling=cooling), 100.0, *greedy, *modest, over=_all_over(greedy))
    assert [each.quota for each in decisions if each.decision is Decision.KILL] == [greedy[1], greedy[0], greedy[2]]
    assert [each.quota for each in decisions if each.decision is Decision.RATE_LIMITED] == [greedy[3]]


def test_a_pod_that_is_being_acted_upon_is_not_chosen_again_on_another_gpu_or_in_another_container() -> None:
    acting, same = quota(), quota(gpu=OTHER_GPU)
    beside = quota(container="second", container_id=NEIGHBOUR)
    state = DetectorState(cases={KEY: _due(acting=True), (CONTAINER, OTHER_GPU): _due(), (NEIGHBOUR, GPU): _due()})
    usages = {CONTAINER: (OVER,), NEIGHBOUR: (holder(20, 9000, NEIGHBOUR),)}
    after, decisions = _look(state, 100.0, acting, same, beside, over=usages, other={CONTAINER: (OVER,)})
    assert decisions == []
    assert after.kills == ()
    assert [case.samples for case in after.cases.values()] == [10, 10, 10]


@pytest.mark.parametrize(("killed", "again"), [(None, False), (-499.5, True), (-500.0, False), (99.0, True)])
def test_who_was_killed_within_ten_minutes_has_no_grace_and_is_killed_whole(
    killed: float | None, *, again: bool
) -> None:
    owed = {(PLACE, GPU): Debt(samples=2, at=99.0, killed=killed)}
    kills = tuple(RecentKill(90.0, "asr", (f"g{n}", "m")) for n in range(2))
    state = DetectorState(cases={KEY: _due(over_for=5.0)}, debts=owed, kills=kills)
    state, decisions = _look(state, 100.0, quota(), *_crowd(9, "tts", 50), over=_usages(OVER))
    assert [(each.decision, each.respawns) for each in decisions] == [(Decision.KILL, again)]
    assert [kill.free for kill in state.kills] == [False, False, again]


def test_who_is_over_for_the_first_time_in_long_does_not_respawn() -> None:
    ended = tuple(RecentKill(10.0 + n, "asr", PLACE) for n in range(3))
    _, decisions = _look(
        DetectorState(cases={KEY: _due()}, kills=ended), 100.0, quota(), *_crowd(9, "tts", 50), over=_usages(OVER)
    )
    assert [(each.decision, each.respawns) for each in decisions] == [(Decision.KILL, False)]


def test_a_pod_that_is_due_twice_keeps_nobody_else_from_being_ended() -> None:
    one, same, another = quota(), quota(gpu=OTHER_GPU), neighbour()
    cases = {KEY: _due(over_for=9.0), (CONTAINER, OTHER_GPU): _due(over_for=8.0), OTHER_KEY: _due()}
    over = _usages(OVER, holder(20, 9000, NEIGHBOUR, another.pod_uid))
    _, decisions = _look(DetectorState(cases=cases), 100.0, one, same, another, over=over, other={CONTAINER: (OVER,)})
    assert [(each.decision, each.quota) for each in decisions] == [(Decision.KILL, one), (Decision.KILL, another)]


def test_that_one_is_suspended_is_reported_once_with_what_it_holds() -> None:
    state = DetectorState(cases={KEY: _due()}, open=True)
    state, decisions = _look(state, 100.0, quota(), over=_usages(OVER))
    assert decisions == [
        KillDecision(decision=Decision.BREAKER_OPEN, quota=quota(), used_mib=5000, over_for=5.5, kill_in=0.0)
    ]
    known = {KEY: _due(over_for=5.5, samples=10, last=100.0, postponed=True)}
    assert state == DetectorState(
        cases=known, debts={(PLACE, GPU): Debt(seconds=452 / 4096, at=100.0, samples=1, rate=RATE)}, open=True
    )
    again, decisions = _look(state, 100.5, quota(), over=_usages(OVER))
    assert (decisions, again.open) == ([], True)
