"""When an open breaker closes by itself, and for how long it is remembered who opened it."""

from dataclasses import replace

import pytest

from enforcer.detection.kill_history import Tenant
from enforcer.detection.storm import Opening, Present, remembered, watched

EVERYBODY: list[Tenant] = [("asr", (f"pod-{number}", "model")) for number in range(5)]
OPENING = Opening(by=frozenset(EVERYBODY), pods=frozenset(pod for _, (pod, _) in EVERYBODY))


def _present(over: int, there: int) -> Present:
    here = frozenset(EVERYBODY[:there])
    return Present(known=here, there=here, over=frozenset(EVERYBODY[:over]))


@pytest.mark.parametrize(("over", "there", "calm"), [(2, 4, False), (2, 5, True), (1, 4, True), (5, 5, False)])
@pytest.mark.parametrize("before", [None, 90.0])
def test_it_is_calm_while_fewer_than_half_are_over_quota(
    over: int, there: int, before: float | None, *, calm: bool
) -> None:
    found = watched(replace(OPENING, calm=before), _present(over, there), 100.0)
    assert found == replace(OPENING, calm=(before or 100.0) if calm else None)


@pytest.mark.parametrize(("now", "closes"), [(159.5, False), (160.0, True)])
def test_it_closes_after_a_minute_of_calm(now: float, *, closes: bool) -> None:
    calm = replace(OPENING, calm=100.0)
    assert watched(calm, _present(1, 4), now) == (None if closes else calm)


def test_who_opened_it_is_remembered_for_an_hour() -> None:
    trips = {EVERYBODY[0]: 100.0, EVERYBODY[1]: 100.5}
    assert [remembered(trips, now) for now in (3699.5, 3700.0, 3700.5)] == [trips, {EVERYBODY[1]: 100.5}, {}]
