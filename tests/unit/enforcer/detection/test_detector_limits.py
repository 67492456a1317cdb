"""How many kills there may be: on a node, and of one container."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from enforcer.attribution.snapshot import ProcessUsage
from enforcer.detection.budget import Account
from enforcer.detection.detector import DOUBT, close_breaker, phase, record_kill_result
from enforcer.detection.types import ContainerState, Decision, DetectorState, Phase, container_key, key_of
from enforcer.quota.types import OnExceed, Quota
from tests.unit.enforcer.detection.test_detector import OVER, POLL, RULES, UNDER, Bench
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, holder, neighbour, quota


def test_after_a_kill_there_is_no_second_grace_period_whatever_the_container_is_called() -> None:
    bench = Bench(quota())
    for _ in range(11):
        bench.see(OVER)
    assert bench.decisions()[-1] == "Kill"
    bench.state = record_kill_result(bench.state, bench.quotas[0], bench.now, RULES, acted=True)
    begun = bench.now
    for restart in range(1, 100):
        container = f"{restart:064x}"
        bench.quotas = [quota(container_id=container)]
        for decision in bench.see(holder(restart, 9000, container)):
            if decision.decision is Decision.KILL:
                assert decision.respawns, "the whole container"
                assert bench.now - begun == RULES.kill_interval
                return
        assert bench.now - begun < RULES.kill_interval


def test_what_failed_is_tried_again_after_the_cool_down_and_not_before() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    for _ in range(3):
        bench.see(OVER)
    bench.state = record_kill_result(bench.state, bench.quotas[0], bench.now, RULES, acted=False)
    begun = bench.now
    while bench.decisions().count("Kill") < 2:
        bench.see(OVER)
    assert RULES.cool_down <= bench.now - begun <= RULES.cool_down + POLL


def crowd(size: int, *, names: Sequence[str] = ("asr",), first: int = 1) -> list[Quota]:
    """Containers in pods of their own, of these namespaces in turn."""
    ids = [f"{number:064x}" for number in range(first, first + size)]
    return [
        quota(container_id=i, pod_uid=i[-9:], namespace=names[n % len(names)], grace_seconds=0.0)
        for n, i in enumerate(ids)
    ]


def over(quotas: Iterable[Quota], mib: int = 9000) -> list[ProcessUsage]:
    return [holder(n + 1, mib, q.container_id or "", q.pod_uid) for n, q in enumerate(quotas)]


def test_the_minutes_budget_holds_back_all_but_a_few_kills() -> None:
    greedy = crowd(6)
    bench = Bench(*greedy, *crowd(7, first=100))
    for _ in range(int(90 / POLL)):
        bench.see(*over(greedy, 4400))
    assert bench.decisions().count("Kill") == RULES.kills, "nor while they are being carried out"
    for each in greedy[: RULES.kills]:
        bench.state = record_kill_result(bench.state, each, bench.now, RULES, acted=True)
    for _ in range(int(59 / POLL)):
        bench.see(*over(greedy[RULES.kills :], 4400))
    assert bench.decisions().count("Kill") == RULES.kills
    assert bench.decisions().count("RateLimited") == len(greedy) - RULES.kills
    assert phase(bench.state, greedy[-1], bench.now) is Phase.POSTPONED
    for _ in range(10):
        bench.see(*over(greedy[RULES.kills :], 4400))
    assert bench.decisions().count("Kill") == 2 * RULES.kills


def test_the_one_most_over_is_first() -> None:
    greedy = crowd(5)
    bench = Bench(*greedy)
    for _ in range(4):
        bench.see(*(holder(n + 1, 5000 + n, q.container_id or "", q.pod_uid) for n, q in enumerate(greedy)))
    killed = [decision.quota for _, decision in bench.taken if decision.decision is Decision.KILL]
    assert killed == [greedy[4], greedy[3], greedy[2]]


def test_a_namespace_without_budget_waits_for_no_minute() -> None:
    """Six containers of 4 GiB that hold 16 GiB more than they may, of 16."""
    greedy = [replace(each, grace_seconds=5.0) for each in crowd(6)]
    bench = Bench(*greedy)
    for _ in range(int(10 / POLL)):
        bench.see(*(holder(n + 1, 4096 + 2730, q.container_id or "", q.pod_uid) for n, q in enumerate(greedy)))
    assert bench.decisions().count("Kill") == 6
    assert bench.times(Decision.KILL)[0] == 5.5


def test_an_open_breaker_kills_nobody_and_says_so_once() -> None:
    bench = Bench(*crowd(8, names=("asr", "tts", "chat")))
    bench.state = replace(bench.state, open=True)
    for _ in range(100):
        bench.see(*over(bench.quotas))
    assert set(bench.decisions()) == {"GraceStarted", "Warned", "BreakerOpen"}
    assert bench.decisions().count("BreakerOpen") == 8
    bench.state = close_breaker(bench.state)
    bench.see(*over(bench.quotas))
    assert bench.decisions()[-1] == "GraceStarted", "with a full budget"


def test_one_container_over_and_over_is_no_storm_and_killed_at_once() -> None:
    bench = Bench()
    chosen = _lives(bench, crowd(1), 200)
    times = bench.times(Decision.KILL)
    assert chosen
    assert len(times) >= 6
    assert min(later - earlier for earlier, later in pairwise(times)) >= RULES.kill_interval


def test_a_container_over_on_two_gpus_is_acted_upon_on_one_at_a_time() -> None:
    bench = Bench(quota(grace_seconds=0.0), quota(grace_seconds=0.0, gpu=OTHER_GPU))
    for _ in range(10):
        bench._take({GPU: {CONTAINER: (OVER,)}, OTHER_GPU: {CONTAINER: (OVER,)}}, POLL)
    assert bench.decisions().count("Kill") == 1
    bench.state = record_kill_result(bench.state, bench.quotas[0], bench.now, RULES, acted=True)
    begun = bench.now
    while bench.decisions().count("Kill") == 1:
        bench._take({GPU: {CONTAINER: (UNDER,)}, OTHER_GPU: {CONTAINER: (OVER,)}}, POLL)
    assert bench.now - begun == RULES.kill_interval
    assert bench.taken[-1][1].quota.gpu == OTHER_GPU


def _lives(
    bench: Bench, greedy: list[Quota], seconds: float, *, ends: bool = True, modest: Sequence[Quota] = ()
) -> dict[str, float]:
    """Containers always over quota, acted upon at once; those chosen die of it and start anew. When each is chosen."""
    chosen: dict[str, float] = {}
    for step in range(int(seconds / POLL)):
        bench.quotas = [*greedy, *modest]
        for decision in [v for v in bench.see(*over(greedy)) if v.decision is Decision.KILL]:
            q = decision.quota
            chosen.setdefault(q.pod_uid, bench.now - 1000.0)
            bench.state = record_kill_result(bench.state, q, bench.now, RULES, acted=ends)
            restarted = f"{step:064x}" if ends else q.container_id
            greedy = [replace(each, container_id=restarted) if each is q else each for each in greedy]
    return chosen


def test_crash_loops_of_one_tenant_do_not_shield_another_container() -> None:
    loops = [quota(pod_uid=f"a{n}", container_id=f"{n:064d}", grace_seconds=0.0) for n in range(3)]
    hidden = neighbour(pod_uid="z", grace_seconds=0.0)
    chosen = _lives(Bench(), [*loops, hidden], 130, modest=crowd(5, first=100))
    assert chosen["z"] <= 65, "the first room in the minute's budget is its own"


def test_attempts_that_did_nothing_to_anybody_leave_the_budget_to_others() -> None:
    hung = [quota(pod_uid=f"a{n}", container_id=f"{n:064d}", grace_seconds=0.0) for n in range(3)]
    late = neighbour(pod_uid="z", grace_seconds=20.0)
    assert _lives(Bench(), [*hung, late], 40, ends=False, modest=crowd(5, first=100))["z"] <= 21


def test_one_pod_is_acted_upon_in_one_container_at_a_time_and_another_pod_does_not_wait() -> None:
    mine = [quota(container=f"c{n}", container_id=f"{n:064d}", grace_seconds=0.0) for n in range(4)]
    other = neighbour(grace_seconds=0.0)
    bench = Bench(*mine, other, *crowd(9, first=100))
    usages = [*(holder(n + 1, 9000, f"{n:064d}") for n in range(4)), holder(9, 9000, "d" * 64, other.pod_uid)]
    kills = [v.quota for _ in range(8) for v in bench.see(*usages) if v.decision is Decision.KILL]
    assert sorted(each.pod for each in kills) == ["other-0", "tts-0"]
    bench.state = record_kill_result(bench.state, kills[0], bench.now, RULES, acted=True)
    bench.state = record_kill_result(bench.state, kills[1], bench.now, RULES, acted=True)
    again = [v.quota for v in bench.see(*usages) if v.decision is Decision.KILL]
    assert [each.pod for each in again] == ["tts-0"]


@pytest.mark.parametrize(
    ("pause", "expected"), [(0.0, [False, True, True]), (110.0, [False, True]), (140.0, [False, False])]
)
def test_who_is_over_again_before_its_budget_is_full_is_ended_whole(pause: float, expected: list[bool]) -> None:
    bench, found = Bench(quota()), list[bool]()
    while len(found) < len(expected):
        for decision in bench.see(OVER):
            if decision.decision is Decision.KILL:
                found.append(decision.respawns)
                bench.state = record_kill_result(bench.state, decision.quota, bench.now, RULES, acted=True)
                for _ in range(int(pause / POLL)):
                    bench.see(UNDER)
    assert found == expected


def nothing(size: int, *, namespace: str = "asr", first: int = 200) -> list[Quota]:
    """Containers that were given nothing, in pods of their own."""
    return [replace(each, memory_mib=0) for each in crowd(size, names=(namespace,), first=first)]


def test_a_container_that_was_given_nothing_is_ended_whatever_it_holds() -> None:
    (helper,) = nothing(1)
    bench = Bench(quota(), helper)
    decisions = [decision for _ in range(12) for decision in bench.see(holder(9, 1, helper.container_id or ""))]
    assert [(each.decision, each.used_mib) for each in decisions] == [
        (Decision.GRACE_STARTED, 1), (Decision.WARNED, 1), (Decision.KILL, 1),
    ]  # fmt: skip
    assert [each.identity.pid for each in decisions[-1].targets] == [9]


def test_whose_policy_only_warned_has_a_full_grace_period_once_it_kills() -> None:
    """Also where the whole enforcer only watched before, and another one, that ends, reads what it remembered."""
    bench = Bench(quota(on_exceed=OnExceed.WARN))
    for _ in range(int(60 / POLL)):
        bench.see(OVER)
    assert bench.decisions() == ["GraceStarted", "Warned"]
    bench.quotas, begun = [quota()], bench.now
    while bench.decisions().count("Kill") < 1:
        bench.see(OVER)
    assert bench.decisions() == ["GraceStarted", "Warned", "Kill"]
    assert 5.0 <= bench.now - begun <= 5.0 + 2 * POLL


def test_a_policy_that_is_milder_for_a_while_shortens_no_grace_period() -> None:
    bench = Bench(quota())
    bench.see(OVER)
    for policy in (OnExceed.WARN, OnExceed.KILL_CONTAINER):
        bench.quotas, begun = [quota(on_exceed=policy)], bench.now
        for _ in range(int(4.5 / POLL)):
            bench.see(OVER)
    assert "Kill" not in bench.decisions()
    while "Kill" not in bench.decisions():
        bench.see(OVER)
    assert 5.0 <= bench.now - begun <= 5.0 + 2 * POLL


def test_who_was_back_within_its_quota_when_it_was_to_be_killed_is_killed_as_soon_as_it_is_over_again() -> None:
    bench = Bench(quota())
    for _ in range(11):
        bench.see(OVER)
    assert bench.decisions()[-1] == "Kill"
    bench.state = record_kill_result(bench.state, bench.quotas[0], bench.now, RULES, acted=False, back=True)
    assert [each.decision for each in bench.see(OVER)] == [Decision.KILL]


@pytest.mark.parametrize(("looks", "overdrawn"), [(11, False), (17, True)])
def test_a_kill_says_whether_a_budget_is_overdrawn(looks: int, *, overdrawn: bool) -> None:
    bench = Bench(quota())
    for _ in range(looks - 1):
        bench.see(OVER)
        bench.state = replace(bench.state, kills={(str(n), ""): bench.now for n in range(RULES.kills)})
    bench.state = replace(bench.state, kills={})
    (decision,) = [each for each in bench.see(OVER) if each.decision is Decision.KILL]
    assert decision.overdrawn is overdrawn


@pytest.mark.parametrize(
    ("own", "all_of_its_namespace", "overdrawn"),
    [(6.9, 0.0, False), (7.0, 0.0, True), (1.0, 6.0, False), (1.0, 6.99, True)],
)
def test_a_budget_is_overdrawn_from_two_seconds_beyond_it_on(
    own: float, all_of_its_namespace: float, *, overdrawn: bool
) -> None:
    """The container's has 5.5 s and is charged half a second now, its namespace's 5 s and 0.03 s."""
    bench = Bench(quota())
    case = ContainerState(phase=Phase.WARNED, used=own, at=bench.now, samples=9, over_for=9.0)
    account = Account(used=all_of_its_namespace, at=bench.now, size=5.0, over=True)
    accounts = {(bench.quotas[0].namespace, GPU): account} if all_of_its_namespace else {}
    bench.state = DetectorState(cases={key_of(bench.quotas[0]): case}, accounts=accounts, sampled={GPU: bench.now})
    (decision,) = bench.see(OVER)
    assert (decision.decision, decision.overdrawn) == (Decision.KILL, overdrawn)


def test_of_a_pod_one_container_is_killed_at_a_time_and_other_pods_do_not_wait_for_it() -> None:
    second = quota(container="second", container_id="a" * 64)
    bench = Bench(quota(), second, neighbour())
    most, more = holder(10, 9000), holder(11, 8000, "a" * 64)
    for _ in range(20):
        bench.see(most, more, holder(20, 7000, NEIGHBOUR, neighbour().pod_uid))
        if killed := [each.quota.container_id for _, each in bench.taken if each.decision is Decision.KILL]:
            break
    assert killed == [CONTAINER, NEIGHBOUR]


def test_a_process_of_nobody_knows_whom_keeps_nobody_from_the_kill_of_who_is_over_without_it() -> None:
    bench = Bench(quota(), neighbour())
    decisions = [each for _ in range(12) for each in bench.see_a_part(OVER, holder(20, 1, NEIGHBOUR))]
    assert [each.decision for each in decisions] == [Decision.GRACE_STARTED, Decision.WARNED, Decision.KILL]
    assert {each.quota.container_id for each in decisions} == {CONTAINER}


@pytest.mark.parametrize("turns", [1, 60])
def test_who_seems_within_while_a_process_is_of_nobody_knows_whom_stays_as_it_was(turns: int) -> None:
    bench = Bench(quota())
    for _ in range(8):
        bench.see(OVER)
    before = bench.state
    for _ in range(turns):
        assert bench.see_a_part(UNDER) == []
    assert (bench.state.cases, bench.state.accounts) == (before.cases, before.accounts)
    assert [each.decision for _ in range(3) for each in bench.see(OVER)] == [Decision.KILL]


def test_a_namespace_that_is_over_without_an_unknown_process_is_charged() -> None:
    bench = Bench(quota())
    for _ in range(3):
        bench.see(OVER)
    before = bench.state.accounts[bench.quotas[0].namespace, GPU]
    bench.see_a_part(OVER)
    now = bench.state.accounts[bench.quotas[0].namespace, GPU]
    assert (now.at, now.over) == (bench.now, True)
    assert now.used > before.used


def test_who_is_only_warned_uses_nothing_of_its_namespaces_budget() -> None:
    bench = Bench(quota(on_exceed=OnExceed.WARN))
    for _ in range(20):
        bench.see(OVER)
    assert bench.state.accounts == {}


def test_a_namespace_that_is_within_again_is_over_no_longer() -> None:
    bench = Bench(quota())
    for holding in (OVER, OVER, UNDER):
        bench.see(holding)
    assert not bench.state.accounts[bench.quotas[0].namespace, GPU].over


def test_a_kill_counts_for_a_minute_once_it_has_ended() -> None:
    bench = Bench(quota())
    case, place = ContainerState(used=5.0, at=bench.now), container_key(bench.quotas[0])
    bench.state = DetectorState(cases={key_of(bench.quotas[0]): case}, kills={place: bench.now})
    bench.see(UNDER, after=RULES.window / 2)
    assert bench.state.kills
    bench.see(UNDER, after=RULES.window / 2)
    assert bench.state.kills == {}


def test_the_doubt_about_a_lowered_quota_begins_when_it_was_lowered() -> None:
    bench = Bench(quota(grace_seconds=9000.0))
    bench.see(OVER)
    bench.see(OVER)
    bench.quotas = [quota(grace_seconds=9000.0, memory_mib=3000)]
    for after, expected in ((DOUBT - 1, Phase.LOWERED), (2.0, Phase.LOWERED), (DOUBT, Phase.OVER)):
        bench.see(holder(10, 4000), after=after)
        assert phase(bench.state, bench.quotas[0], bench.now) is expected


def test_a_violation_ended_with_the_last_reading_before_a_long_gap() -> None:
    bench = Bench(quota())
    key, account = key_of(bench.quotas[0]), (bench.quotas[0].namespace, GPU)
    case = ContainerState(phase=Phase.WARNED, used=3.0, at=bench.now + 3, samples=9, over_for=4.0)
    accounts = {account: Account(used=3.0, at=bench.now, size=5.0, over=True)}
    bench.state = DetectorState(cases={key: case}, accounts=accounts, sampled={GPU: bench.now})
    read = bench.now
    bench.now += 2 * RULES.max_gap
    bench.see_a_part(UNDER)
    assert bench.state.cases[key] == replace(case, phase=Phase.WITHIN, at=read, samples=0, over_for=0.0)
    assert bench.state.accounts[account].over is False


def test_a_container_that_was_away_is_looked_at_as_often_as_any_other() -> None:
    bench = Bench(quota(grace_seconds=0.0))
    bench.see(OVER), bench.see(OVER)
    bench.quotas = [quota(container_id=None)]
    bench.see()
    bench.quotas = [quota(grace_seconds=0.0)]
    assert Decision.KILL not in [each.decision for _ in range(RULES.samples - 1) for each in bench.see(OVER)]
    assert bench.state.cases[key_of(bench.quotas[0])].samples == RULES.samples - 1
