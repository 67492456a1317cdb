from dataclasses import replace

import pytest

from enforcer.detection.debt import Debt, Terms, aged, charge, is_used_up, key_of, left, pause, resume
from enforcer.detection.types import Decision, DetectorConfig, KillDecision
from enforcer.quota.types import OnExceed
from tests.unit.enforcer.detection.test_detector import UNDER, Bench
from tests.unit.enforcer.made import GPU, holder, quota

TERMS = Terms()
RATE = 10.0 / 300.0
ONE = quota()


@pytest.mark.parametrize(
    ("used_mib", "step", "seconds"),
    [(8192, 0.5, 4.5), (99_999, 0.5, 4.5), (4097, 0.5, 4.0 + 0.5 / 4096), (6144, 2.0, 5.0), (8192, 0.0, 4.0)],
)
def test_a_sample_adds_its_time_by_how_far_it_is_over_at_most_once(used_mib: int, step: float, seconds: float) -> None:
    debt = charge(Debt(seconds=4.0, at=100.0, samples=3), ONE, used_mib, step, 100.5, TERMS)
    assert debt == Debt(seconds=seconds, at=100.5, samples=4, rate=RATE)


def test_the_first_sample_of_a_violation_adds_a_fixed_time_to_what_is_left() -> None:
    debt = charge(Debt(seconds=4.0, at=100.0, samples=3, rate=RATE), ONE, 8192, None, 130.0, TERMS)
    assert replace(debt, seconds=0.0) == Debt(at=130.0, samples=4, rate=RATE)
    assert debt.seconds == pytest.approx(3.5)


def test_it_shrinks_by_the_whole_credit_in_the_refill_time_and_not_below_nothing() -> None:
    debt = Debt(seconds=10.0, at=100.0, rate=RATE)
    assert [left(debt, at) for at in (99.0, 100.0, 250.0, 400.0, 1e6)] == [10.0, 10.0, 5.0, 0.0, 0.0]


def test_while_the_gpu_cannot_be_read_it_neither_grows_nor_shrinks() -> None:
    debt = pause(Debt(seconds=10.0, at=100.0, samples=9, rate=RATE), 250.0)
    assert debt == Debt(seconds=5.0, at=250.0, samples=9, rate=RATE, paused=True)
    assert (left(debt, 1e6), pause(debt, 300.0)) == (5.0, debt)
    seen = resume(debt, ONE, 1000.0, TERMS)
    assert seen == replace(debt, at=1000.0, paused=False)
    assert (left(seen, 1000.0), left(seen, 1150.0)) == (5.0, 0.0)


def test_a_sample_over_quota_ends_the_pause() -> None:
    debt = charge(Debt(seconds=4.0, at=100.0, rate=RATE, paused=True), ONE, 8192, None, 130.0, TERMS)
    assert debt == Debt(seconds=4.5, at=130.0, samples=1, rate=RATE)


def test_it_grows_to_twice_the_credit_and_no_further() -> None:
    assert charge(Debt(seconds=19.5), ONE, 8192, 0.25, 1.0, TERMS).seconds == 19.75
    assert charge(Debt(seconds=19.5), ONE, 8192, 5.0, 1.0, TERMS).seconds == 20.0


@pytest.mark.parametrize("memory_mib", [0, 1])
def test_one_mib_above_next_to_nothing_counts_in_full(memory_mib: int) -> None:
    assert charge(Debt(), quota(memory_mib=memory_mib), memory_mib + 1, 0.5, 1.0, TERMS).seconds == 0.5


def test_the_credit_is_used_up_by_a_debt_of_its_size() -> None:
    debt = Debt(seconds=10.0, at=100.0, rate=RATE)
    assert [is_used_up(debt, ONE, now, TERMS) for now in (100.0, 100.5)] == [True, False]


@pytest.mark.parametrize(("seconds", "warned"), [(10.0, True), (2.5, True), (2.25, False), (0.0, False)])
def test_a_warning_stands_until_less_than_a_quarter_of_the_credit_is_owed(seconds: float, *, warned: bool) -> None:
    debt = Debt(seconds=seconds, at=100.0, warned=True)
    assert resume(debt, ONE, 100.0, TERMS) == replace(debt, warned=warned)
    assert resume(replace(debt, warned=False), ONE, 100.0, TERMS) == replace(debt, warned=False)


def test_the_detector_keeps_a_debt_while_the_gpu_cannot_be_read() -> None:
    bench = Bench(ONE)
    bench.state = replace(bench.state, debts={key_of(ONE): Debt(seconds=10.0, at=1000.0, rate=RATE)})
    bench.blind(after=150.0)
    assert bench.state.debts == {key_of(ONE): Debt(seconds=5.0, at=1150.0, rate=RATE, paused=True)}


@pytest.mark.parametrize(("before", "warned"), [(4.25, False), (4.5, True)])
def test_a_tenant_is_warned_once_half_of_the_credit_is_used_up(before: float, *, warned: bool) -> None:
    bench = Bench(ONE)
    bench.state = replace(bench.state, debts={key_of(ONE): Debt(seconds=before, at=1000.0)})
    started = KillDecision(decision=Decision.GRACE_STARTED, quota=ONE, used_mib=8192, kill_in=5.0)
    in_debt = replace(started, decision=Decision.IN_DEBT, debt=5.0)
    assert bench.see(holder(10, 8192)) == ([started, in_debt] if warned else [started])
    assert bench.state.debts[key_of(ONE)].warned is warned


def test_one_violation_shorter_than_its_grace_period_never_uses_the_credit_up() -> None:
    assert TERMS.credit_of(quota(grace_seconds=5.0)) == 10.0
    assert TERMS.credit_of(quota(grace_seconds=30.0)) == 30.5


def test_what_is_paid_is_forgotten_and_a_kill_after_ten_minutes() -> None:
    paid, owed = Debt(seconds=1.0, at=100.0, rate=RATE), Debt(seconds=9.0, at=100.0, rate=RATE)
    killed = replace(paid, killed=100.0)
    keys = [(("uid", name), GPU) for name in "abc"]
    debts = dict(zip(keys, (paid, owed, killed), strict=True))
    assert [*aged(debts, 140.0, TERMS)] == keys[1:]
    assert [*aged(debts, 699.0, TERMS)] == keys[2:]
    assert aged(debts, 700.0, TERMS) == {}


def test_nobody_owes_anything_where_only_a_warning_is_wanted_nor_for_what_is_within_the_quota() -> None:
    for bench in (Bench(quota(on_exceed=OnExceed.WARN)), Bench(quota())):
        for _ in range(100):
            bench.see(holder(10, 9000) if bench.quotas[0].on_exceed is OnExceed.WARN else UNDER)
        assert bench.state.debts == {}


def test_a_container_in_debt_is_due_with_the_next_sample_whatever_its_container_is_called() -> None:
    bench = Bench(quota(container_id="e" * 64), rules=DetectorConfig(debt=Terms(credit=5.5)))
    owed = Debt(seconds=6.0, at=1000.0, samples=2)
    bench.state = replace(bench.state, debts={key_of(bench.quotas[0]): owed})
    found = [(each.decision.value, each.debt) for each in bench.see(holder(10, 9000, "e" * 64))]
    assert found == [("GraceStarted", 0.0), ("InDebt", 6.5), ("Kill", 6.5)]


def test_a_namespace_may_have_its_own_credit_and_refill_time() -> None:
    own = quota(debt_credit=20.0, debt_refill=100.0)
    assert (TERMS.credit_of(own), TERMS.rate_of(own)) == (20.0, 0.2)
    debt = charge(Debt(seconds=4.0, at=100.0, samples=3), own, 8192, 0.5, 100.5, TERMS)
    assert left(debt, 110.5) == 2.5
