from dataclasses import replace

from enforcer.detection.budget import Account
from enforcer.detection.forecast import ONLY_WARNS, describe, seconds_until_kill
from enforcer.detection.types import ContainerState, DetectorConfig, DetectorState, Phase, key_of
from enforcer.quota.types import OnExceed, Quota
from tests.unit.enforcer.made import GPU, quota

NOW = 1000.0
OVER = ContainerState(used_mib=5000, phase=Phase.OVER, samples=1, used=0.5, at=NOW)
DUE = replace(OVER, phase=Phase.WARNED, samples=12, over_for=6.0, used=5.5)
RULES = DetectorConfig()
FULL = {("x", str(at)): at for at in (950.0, 960.0, 970.0)}
"""Three kills within the last minute."""


def state_of(case: ContainerState, **changes: object) -> DetectorState:
    return DetectorState(cases={key_of(quota()): case}, **changes)  # type: ignore[arg-type] # as each test gives them


def told(case: ContainerState, allowed: Quota | None = None, **changes: object) -> str:
    return describe(state_of(case, **changes), allowed or quota(), NOW, RULES)


def test_what_is_well_is_reported_in_a_few_words() -> None:
    assert describe(DetectorState(), quota(), 1.0, RULES) == "model holds 0 MiB of 4096 MiB and has not started"
    well = ContainerState(used_mib=4000)
    assert told(well) == "model holds 4000 MiB of 4096 MiB and is within its kill threshold"
    assert "is over its quota, and the enforcer is killing it" in told(replace(OVER, phase=Phase.KILLING))
    assert "which was lowered below what it used" in told(replace(OVER, phase=Phase.LOWERED, used=0.0))


def test_it_says_what_will_happen_and_in_how_many_seconds() -> None:
    assert told(OVER) == (
        "model holds 5000 MiB of 4096 MiB and is over its quota: 1 of the 3 samples in a row that make a violation; "
        "the enforcer kills it in 5.0s unless it frees 904 MiB; budget over quota: 5.0s left, back in full after 12s "
        "within its quota"
    )
    warned = replace(OVER, phase=Phase.WARNED, samples=3, over_for=1.5, used=2.0)
    assert "has been over its quota for 1.5s; the enforcer kills it in 3.5s unless it frees 904 MiB" in told(warned)
    assert "unless it frees 104 MiB" in told(warned, quota(tolerance_mib=800)), "the tolerance is no excess"
    assert told(warned, quota(on_exceed=OnExceed.WARN)).endswith(f"for 1.5s; {ONLY_WARNS}")


def test_a_budget_that_was_used_is_named_with_the_time_until_it_is_back() -> None:
    used = ContainerState(used_mib=4000, used=2.3, at=NOW - 12.0)
    assert told(used).endswith(
        "is within its kill threshold; budget over quota: 3.7s left, back in full after 43s within its quota"
    )
    assert told(replace(used, at=NOW - 60.0)).endswith("is within its kill threshold")


def test_a_namespace_without_budget_is_named() -> None:
    account = Account(used=6.0, at=NOW, size=5.0)
    accounts = {("asr", GPU): account}
    assert told(ContainerState(used_mib=4000), accounts=accounts).endswith(
        "; namespace asr used up its budget on this GPU: it has some again after 24s within its quotas"
    )
    over = {("asr", GPU): replace(account, over=True)}
    assert seconds_until_kill(state_of(OVER, accounts=over, kills=FULL), quota(), NOW, RULES) == 0.0
    assert seconds_until_kill(state_of(OVER, accounts=accounts), quota(), NOW, RULES) == 5.0


def test_a_pause_and_the_limit_of_kills_count_where_they_last_longer() -> None:
    paused = replace(DUE, phase=Phase.COOLING_DOWN, spared_until=1012.5)
    assert "recently and waits before the next kill; the enforcer kills it in 12.5s unless it frees 904 MiB" in told(
        paused
    )
    postponed = replace(DUE, phase=Phase.POSTPONED)
    assert (
        "the enforcer kills it in 10.0s at the earliest because of the kill rate limit "
        "(kills on this node: 3 in the last 60s)"
    ) in told(postponed, kills=FULL)
    assert "the enforcer kills it in 0.0s" in told(postponed)


def test_the_seconds_are_those_of_the_sentence() -> None:
    paused = state_of(replace(DUE, spared_until=1012.5))
    assert seconds_until_kill(paused, quota(), NOW, RULES) == 12.5
    assert seconds_until_kill(replace(paused, kills=FULL), quota(), 980.0, RULES) == 32.5
    assert seconds_until_kill(state_of(DUE, kills=FULL), quota(), 980.0, RULES) == 30.0
    assert seconds_until_kill(state_of(replace(DUE, killed=True), kills=FULL), quota(), 980.0, RULES) == 0.0
    assert seconds_until_kill(replace(paused, open=True), quota(), NOW, RULES) is None
    assert seconds_until_kill(paused, quota(on_exceed=OnExceed.WARN), NOW, RULES) is None
    assert seconds_until_kill(state_of(ContainerState(used_mib=9)), quota(), NOW, RULES) is None


def test_an_open_breaker_is_named_with_the_way_out() -> None:
    postponed = replace(DUE, phase=Phase.POSTPONED)
    assert (
        "for 6.0s; an operator stopped all kills of this node, so the enforcer kills nothing; to resume, run "
        "`gpu-share breaker --reset` on this node"
    ) in told(postponed, open=True)
