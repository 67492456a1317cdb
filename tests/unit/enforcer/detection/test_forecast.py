from dataclasses import replace

from enforcer.detection.debt import Debt
from enforcer.detection.forecast import describe, seconds_until_kill
from enforcer.detection.kill_history import RecentKill
from enforcer.detection.types import DetectorConfig, DetectorState, ViolationState
from enforcer.quota.types import OnExceed, Quota
from tests.unit.enforcer.made import CONTAINER, GPU, POD, quota

OVER = ViolationState(used_mib=5000, samples=1, last=1000.0)
RULES = DetectorConfig()


def decisions(case: ViolationState, allowed: Quota | None = None, **state: object) -> str:
    return describe(DetectorState(cases={(CONTAINER, GPU): case}, **state), allowed or quota(), 1000.0, RULES)  # type: ignore[arg-type]


def test_what_is_well_is_reported_in_a_few_words() -> None:
    assert describe(DetectorState(), quota(), 1.0, RULES) == "model holds 0 MiB of 4096 MiB and has not started"
    assert (
        decisions(ViolationState(used_mib=4000)) == "model holds 4000 MiB of 4096 MiB and is within its kill threshold"
    )
    acting = replace(OVER, acting=True)
    assert decisions(acting) == "model holds 5000 MiB of 4096 MiB and is over its quota, and the enforcer is killing it"


def test_it_says_what_will_happen_and_in_how_many_seconds() -> None:
    assert decisions(OVER) == (
        "model holds 5000 MiB of 4096 MiB and is over its quota: 1 of the 3 consecutive samples that make a violation; "
        "the enforcer kills it in 5.0s unless it frees 904 MiB"
    )
    warned = replace(OVER, samples=3, over_for=1.5, warned=True)
    assert decisions(warned).endswith(
        "has been over its quota for 1.5s; the enforcer kills it in 3.5s unless it frees 904 MiB"
    )
    assert decisions(warned, quota(tolerance_mib=800)).endswith("unless it frees 104 MiB"), "the tolerance is no excess"
    assert decisions(warned, quota(on_exceed=OnExceed.WARN)).endswith(
        "for 1.5s; the enforcer only warns (policy warn, or --no-enforce)"
    )


def test_a_cool_down_and_a_spent_budget_count_where_they_last_longer_than_the_grace() -> None:
    due = replace(OVER, samples=12, over_for=6.0, warned=True)
    cooling = {(POD, "model"): 1012.5}
    assert decisions(due, cooling=cooling).endswith(
        "recently and waits before the next kill; the enforcer kills it in 12.5s unless it frees 904 MiB"
    )
    kills = tuple(RecentKill(at, "asr", ("x", str(at))) for at in (950.0, 960.0, 970.0))
    usages = replace(due, postponed=True)
    assert decisions(usages, kills=kills).endswith(
        "the enforcer kills it in 10.0s at the earliest because of the kill rate limit "
        "(kills: 3 in the last 60s in namespace asr)"
    )
    assert decisions(usages, kills=kills[1:]).endswith("the enforcer kills it in 0.0s unless it frees 904 MiB")


def test_the_seconds_are_those_of_the_sentence() -> None:
    due, key = replace(OVER, samples=12, over_for=6.0), (CONTAINER, GPU)
    calm = DetectorState(cases={key: due}, cooling={(POD, "model"): 1012.5})
    assert seconds_until_kill(calm, quota(), 1000.0, RULES) == 12.5
    spent = replace(calm, kills=tuple(RecentKill(at, "asr", ("x", str(at))) for at in (950.0, 960.0, 970.0)))
    assert seconds_until_kill(spent, quota(), 980.0, RULES) == 32.5
    assert seconds_until_kill(replace(spent, cooling={}), quota(), 980.0, RULES) == 30.0
    assert seconds_until_kill(replace(calm, open=True), quota(), 1000.0, RULES) is None
    assert seconds_until_kill(calm, quota(on_exceed=OnExceed.WARN), 1000.0, RULES) is None
    assert seconds_until_kill(replace(calm, cases={key: ViolationState(used_mib=9)}), quota(), 1000.0, RULES) is None


def test_a_debt_is_named_once_half_of_the_credit_is_used_up() -> None:
    key = ((POD, "model"), GPU)
    within = ViolationState(used_mib=4000)
    assert decisions(within, debts={key: Debt(seconds=4.9, at=1000.0)}).endswith("is within its kill threshold")
    assert decisions(within, debts={key: Debt(seconds=6.25, at=1000.0)}).endswith(
        "is within its kill threshold; earlier violations used up 6.2s of its debt credit of 10.0s"
    )
    killed = decisions(replace(OVER, graceless=True), debts={key: Debt(seconds=6.0, at=1000.0, killed=960.0)})
    assert killed.endswith(
        "the enforcer kills it in 0.0s unless it frees 904 MiB; it was killed 40s ago and has no second grace period"
    )


def test_a_repeated_kill_waits_for_no_room() -> None:
    kills = tuple(RecentKill(at, "asr", ("x", str(at))) for at in (950.0, 960.0, 970.0))
    debts = {((POD, "model"), GPU): Debt(at=990.0, killed=990.0)}
    due = replace(OVER, samples=12, over_for=6.0, graceless=True)
    state = DetectorState(cases={(CONTAINER, GPU): due}, kills=kills, debts=debts)
    assert seconds_until_kill(state, quota(), 1000.0, RULES) == 0.0
    assert seconds_until_kill(replace(state, debts={}), quota(), 1000.0, RULES) == 10.0
    assert seconds_until_kill(replace(state, debts={}), quota(namespace="tts"), 1000.0, RULES) == 0.0


def test_an_open_breaker_is_named_with_the_way_out() -> None:
    due = replace(OVER, samples=12, over_for=6.0, warned=True, postponed=True)
    assert decisions(due, open=True).endswith(
        "for 6.0s; the circuit breaker of this node is open, so the enforcer kills nothing; to close it, "
        "run `gpu-share breaker --reset`"
    )
