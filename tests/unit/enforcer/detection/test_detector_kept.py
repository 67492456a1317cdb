"""What the detector says in its decisions, and what it keeps when a kill has ended or the breaker is closed."""

from dataclasses import replace

import pytest

from enforcer.detection.budget import Account
from enforcer.detection.detector import (
    DOUBT,
    budget_left,
    close_breaker,
    phase,
    recent_kills,
    record_kill_result,
    size_of,
)
from enforcer.detection.forecast import used_seconds
from enforcer.detection.types import Decision, DetectorState, KillDecision, Phase
from enforcer.quota.types import OnExceed
from tests.unit.enforcer.detection.test_detector import OVER, POLL, RULES, UNDER, Bench
from tests.unit.enforcer.detection.test_detector_limits import crowd, over
from tests.unit.enforcer.made import CONTAINER, GPU, OTHER_GPU, holder, quota


def test_each_decision_says_of_whom_it_is_for_how_long_it_was_over_and_when_it_ends() -> None:
    one = quota()
    bench = Bench(one)
    for _ in range(11):
        bench.see(OVER)
    said = KillDecision(decision=Decision.GRACE_STARTED, quota=one, used_mib=5000, over_for=0.0, kill_in=5.0)
    assert [each for _, each in bench.taken] == [
        said,
        replace(said, decision=Decision.WARNED, over_for=1.0, kill_in=4.0),
        replace(said, decision=Decision.KILL, over_for=5.0, kill_in=0.0, targets=(OVER,), at=1005.5),
    ]


def test_who_came_back_is_told_how_long_it_was_over() -> None:
    bench = Bench(quota())
    for _ in range(5):
        bench.see(OVER)
    (back,) = bench.see(UNDER)
    assert (back.decision, back.over_for, back.used_mib) == (Decision.BACK_UNDER, 2.0, 4096)
    assert bench.state.of(quota()).over_for == 0.0


@pytest.mark.parametrize("kind", [Decision.RATE_LIMITED, Decision.BREAKER_OPEN])
def test_who_is_spared_for_now_is_named(kind: Decision) -> None:
    greedy = crowd(4)
    bench = Bench(*greedy)
    bench.state = replace(bench.state, open=kind is Decision.BREAKER_OPEN)
    for _ in range(4):
        bench.see(*over(greedy))
    spared = [each for _, each in bench.taken if each.decision is kind]
    assert {each.quota for each in spared} <= set(greedy)
    assert {(each.used_mib, each.kill_in) for each in spared} == {(9000, 0.0)}


def test_while_only_a_warning_is_wanted_what_was_used_comes_back() -> None:
    bench = Bench(quota())
    for _ in range(4):
        bench.see(OVER)
    bench.quotas = [quota(on_exceed=OnExceed.WARN)]
    for _ in range(int(24 / POLL)):
        bench.see(OVER)
    assert used_seconds(bench.state, quota(), bench.now) == pytest.approx(1.0)


def test_between_two_samples_over_quota_nothing_comes_back() -> None:
    bench = Bench(quota())
    for _ in range(4):
        bench.see(OVER)
    assert budget_left(bench.state, quota(), bench.now + 9, RULES) == budget_left(
        bench.state, quota(), bench.now, RULES
    )


def test_a_kill_uses_up_the_budget_from_its_end_on() -> None:
    bench = Bench(quota())
    bench.see(OVER)
    bench.state = record_kill_result(bench.state, quota(), bench.now + 7, RULES, acted=True)
    case = bench.state.of(quota())
    assert (case.used, case.at, case.killed) == (size_of(quota(), RULES), bench.now + 7, True)
    assert budget_left(bench.state, quota(), bench.now + 7, RULES) == 0.0


def test_an_attempt_that_did_nothing_takes_only_itself_from_the_minutes_kills() -> None:
    greedy = crowd(2)
    bench = Bench(*greedy)
    for _ in range(3):
        bench.see(*over(greedy))
    assert recent_kills(bench.state, bench.now, RULES) == 2
    bench.state = record_kill_result(bench.state, greedy[0], bench.now, RULES, acted=False)
    assert [pod for pod, _ in bench.state.kills] == [greedy[1].pod_uid]
    assert recent_kills(bench.state, bench.now + RULES.window - POLL, RULES) == 1
    assert recent_kills(bench.state, bench.now + RULES.window, RULES) == 0


def test_a_container_cools_down_until_that_moment() -> None:
    bench = Bench(quota())
    bench.see(OVER)
    bench.state = record_kill_result(bench.state, quota(), bench.now, RULES, acted=False)
    until = bench.now + RULES.cool_down
    assert phase(bench.state, quota(), until - 0.1) is Phase.COOLING_DOWN
    assert phase(bench.state, quota(), until) is Phase.OVER


def test_closing_the_breaker_makes_budgets_full_and_forgets_no_kill_under_way_and_no_reading() -> None:
    bench = Bench(quota(grace_seconds=0.0), *crowd(1))
    for _ in range(3):
        bench.see(OVER, holder(9, 5000, bench.quotas[1].container_id or "", bench.quotas[1].pod_uid))
    bench.state = record_kill_result(bench.state, bench.quotas[1], bench.now, RULES, acted=True)
    before = replace(bench.state, open=True, blind=frozenset({OTHER_GPU}))
    after = close_breaker(before)
    assert [(each.phase, each.used_mib, each.used, each.killed) for each in after.cases.values()] == [
        (Phase.KILLING, 5000, 0.0, False),
        (Phase.WITHIN, 5000, 0.0, False),
    ]
    assert after == DetectorState(cases=after.cases, sampled={GPU: bench.now}, blind=frozenset({OTHER_GPU}))


def test_what_is_new_of_several_containers_is_said_of_each() -> None:
    greedy = crowd(3)
    bench = Bench(*greedy)
    assert [each.quota for each in bench.see(*over(greedy))] == greedy


def test_a_container_whose_namespace_has_no_budget_is_warned_of_an_end_at_once_and_ended() -> None:
    """Another container of its namespace used up the GPU's time before."""
    first, second = (replace(each, grace_seconds=5.0) for each in crowd(2))
    bench = Bench(first, second)
    whole = holder(1, 16_384 + 8192, first.container_id or "", first.pod_uid)
    for _ in range(20):
        bench.see(whole)
    bench.taken.clear()
    for _ in range(3):
        bench.see(whole, holder(2, 4097, second.container_id or "", second.pod_uid))
    assert [(each.decision, each.kill_in, each.respawns) for _, each in bench.taken] == [
        (Decision.GRACE_STARTED, 0.0, False),
        (Decision.WARNED, 0.0, False),
        (Decision.KILL, 0.0, True),
    ]


def test_a_violation_that_begins_has_lasted_for_no_time_and_a_full_budget_forgets_kills() -> None:
    bench = Bench(quota())
    bench.see(OVER)
    bench.state = record_kill_result(bench.state, quota(), bench.now, RULES, acted=True)
    for _ in range(int(24 * 6 / POLL)):
        bench.see(UNDER)
    assert bench.state.of(quota()).killed is False
    (begun,) = bench.see(OVER)
    assert (begun.decision, begun.over_for, bench.state.of(quota()).over_for) == (Decision.GRACE_STARTED, 0.0, 0.0)


LOWER = quota(memory_mib=4000, grace_seconds=0.0)


def test_a_lowered_threshold_counts_after_exactly_ten_minutes_also_without_a_grace_period() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    bench.see(UNDER)
    bench.quotas = [LOWER]
    bench.see(UNDER)
    begun = bench.now
    while bench.now < begun + DOUBT - POLL:
        bench.see(UNDER)
        assert phase(bench.state, LOWER, bench.now) is Phase.LOWERED
    bench.see(UNDER)
    assert phase(bench.state, LOWER, bench.now) is not Phase.LOWERED


def test_each_time_that_a_threshold_is_lowered_has_ten_minutes_of_its_own() -> None:
    bench = Bench(quota(memory_mib=5000, grace_seconds=0.0))
    bench.see(holder(10, 5000))
    for mib in (4500, 4000):
        bench.quotas = [quota(memory_mib=mib, grace_seconds=0.0)]
        bench.see(holder(10, mib + 1))
        assert phase(bench.state, bench.quotas[0], bench.now) is Phase.LOWERED
        for _ in range(int(DOUBT / POLL) + 1):
            bench.see(holder(10, mib))
    assert Decision.KILL not in {each.decision for _, each in bench.taken}


def test_time_over_a_threshold_is_no_time_since_it_was_lowered() -> None:
    bench = Bench(quota(on_exceed=OnExceed.WARN))
    for _ in range(int(DOUBT / POLL) + 2):
        bench.see(OVER)
    bench.quotas = [LOWER]
    bench.see(holder(10, 4050))
    assert phase(bench.state, LOWER, bench.now) is Phase.LOWERED


def test_without_a_grace_period_who_is_only_warned_is_not_killed() -> None:
    bench = Bench(quota(grace_seconds=0.0, on_exceed=OnExceed.WARN))
    for _ in range(50):
        bench.see(OVER)
    assert bench.decisions() == ["GraceStarted", "Warned"]


WHOLE = holder(10, 4096 + 16_384)


def test_after_a_gap_a_violation_and_a_namespaces_time_ended_at_the_last_sample_of_that_gpu() -> None:
    bench = Bench(quota(grace_seconds=30.0))
    for _ in range(5):
        bench.see(WHOLE)
    there = Account(used=3.0, at=bench.now, size=5.0, over=True)
    accounts = {**bench.state.accounts, ("asr", OTHER_GPU): there}
    bench.state = replace(bench.state, accounts=accounts, sampled={**bench.state.sampled, OTHER_GPU: bench.now})
    assert bench.state.accounts["asr", GPU].used == 2.0
    bench.see(WHOLE, after=24.0)
    assert bench.state.accounts["asr", GPU].used == 1.0
    assert bench.state.accounts["asr", OTHER_GPU] == there
    assert bench.state.sampled == {GPU: bench.now, OTHER_GPU: there.at}
    assert bench.state.of(quota()).used == 2.5 - 1.0 + 0.5


def test_a_gap_on_one_gpu_ends_no_violation_on_another_and_no_kill_under_way() -> None:
    here, there = quota(grace_seconds=0.0), quota(grace_seconds=60.0, gpu=OTHER_GPU)
    bench = Bench(here, there)
    for _ in range(3):
        bench._take({GPU: {CONTAINER: (OVER,)}, OTHER_GPU: {CONTAINER: (OVER,)}}, POLL)
    for _ in range(30):
        bench._take({GPU: None, OTHER_GPU: {CONTAINER: (OVER,)}}, POLL)
    bench._take({GPU: {CONTAINER: (OVER,)}, OTHER_GPU: {CONTAINER: (OVER,)}}, POLL)
    assert phase(bench.state, here, bench.now) is Phase.KILLING
    assert (bench.state.of(there).samples, bench.state.of(there).over_for) == (34, 16.5)


def test_what_a_namespace_reserved_on_another_gpu_counts_there_alone() -> None:
    bench = Bench(quota(), quota(gpu=OTHER_GPU, memory_mib=9000))
    for _ in range(3):
        bench.see(holder(10, 4096 + 8192))
    assert bench.state.accounts["asr", GPU].used == 0.5


def test_what_does_not_run_holds_nothing_and_little_that_was_used_is_kept_as_well() -> None:
    bench = Bench(quota())
    bench.see(OVER)
    bench.quotas = [quota(container_id=None)]
    bench.see()
    assert (bench.state.of(quota()).used_mib, bench.state.of(quota()).used) == (0, RULES.first)
    bench.quotas = []
    bench.see()
    assert len(bench.state.cases) == 1


def test_a_second_container_of_a_pod_keeps_no_other_pod_waiting() -> None:
    mine = [quota(container=f"c{n}", container_id=f"{n:064d}", grace_seconds=0.0) for n in range(2)]
    bench = Bench(*mine, *crowd(1))
    usages = [holder(n + 1, 12_000, f"{n:064d}") for n in range(2)]
    for _ in range(3):
        bench.see(*usages, *over(bench.quotas[2:]))
    assert bench.decisions().count("Kill") == 2


def test_a_kill_counts_for_less_than_a_minute() -> None:
    bench = Bench(quota())
    bench.see(UNDER)
    bench.state = replace(bench.state, kills={("gone", "model"): bench.now})
    bench.see(UNDER, after=RULES.window - POLL)
    assert len(bench.state.kills) == 1
    bench.see(UNDER)
    assert bench.state.kills == {}
