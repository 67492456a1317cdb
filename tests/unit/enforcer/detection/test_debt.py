from dataclasses import replace

import pytest

from enforcer.detection.debt import Debt, Terms, aged, charge, key_of, left, pause, resume
from enforcer.detection.types import DetectorConfig
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
    assert (left(debt, 1e6), pause(debt, 300.0)) == (5.0, debt)
    seen = resume(debt, ONE, 1000.0, TERMS)
    assert (left(seen, 1000.0), left(seen, 1150.0)) == (5.0, 0.0)


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
    assert [each.decision.value for each in bench.see(holder(10, 9000, "e" * 64))] == ["GraceStarted", "InDebt", "Kill"]


def test_a_namespace_may_have_its_own_credit_and_refill_time() -> None:
    own = quota(debt_credit=20.0, debt_refill=100.0)
    assert (TERMS.credit_of(own), TERMS.rate_of(own)) == (20.0, 0.2)
    debt = charge(Debt(seconds=4.0, at=100.0, samples=3), own, 8192, 0.5, 100.5, TERMS)
    assert left(debt, 110.5) == 2.5
