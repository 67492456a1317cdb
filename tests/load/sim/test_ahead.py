"""Who knows more than a scheduler: counted as a fleet is, never more than there is, and right where right is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.load.sim import ahead
from tests.load.sim.ahead import FULL, Gpus
from tests.load.sim.best import best_fit
from tests.load.sim.sizes import GIB, Card, Size

SIZES = st.lists(st.integers(1, FULL), max_size=60)


@given(SIZES, st.integers(1, 6))
def test_the_fullest_with_room_is_best_fit(sizes: list[int], gpus: int) -> None:
    held = ahead.played(Gpus.empty(gpus), sizes, ahead.fullest)
    assert held * GIB == best_fit([Size(size * GIB) for size in sizes], Card(clients=999), gpus)


@given(SIZES, st.integers(1, 3), st.integers(0, 9))
def test_nobody_places_more_than_there_is(sizes: list[int], gpus: int, seed: int) -> None:
    fleet = Gpus.empty(gpus)
    assert ahead.looking_ahead(fleet, sizes, 2, seed) == fleet.held <= min(sum(sizes), gpus * FULL)
    assert (sum(fleet.many), min(fleet.many)) == (gpus, 0)
    assert fleet.some == sum(1 << free for free, many in enumerate(fleet.many) if many)


@given(st.lists(st.integers(1, FULL), min_size=1, max_size=12), st.integers(0, 9))
def test_no_pod_that_has_room_is_refused(sizes: list[int], seed: int) -> None:
    assert ahead.looking_ahead(Gpus.empty(len(sizes)), sizes, 2, seed) == sum(sizes)


@pytest.mark.parametrize(
    ("sizes", "where"),
    [
        pytest.param([30, 50], 50, id="it fills a gap to the last GiB"),
        pytest.param([30, 40], 80, id="it takes an empty one rather than leave a gap"),
        pytest.param([30, 40, 45], 50, id="it takes the fullest where none is empty"),
        pytest.param([30, 40, 60], -1, id="it has no room"),
    ],
)
def test_without_gaps(sizes: list[int], where: int) -> None:
    fleet = Gpus.empty(2)
    ahead.played(fleet, sizes[:-1], ahead.without_gaps)
    assert ahead.without_gaps(fleet, sizes[-1]) == where


@pytest.mark.parametrize(
    ("future", "free"),
    [
        pytest.param([80], [1, 80], id="a whole card will be asked for: keep one, and leave a gap"),
        pytest.param([40, 41], [40, 41], id="pods will come that fill both to the last GiB"),
    ],
)
def test_looking_ahead_chooses_by_what_comes(
    monkeypatch: pytest.MonkeyPatch, future: list[int], free: list[int]
) -> None:
    monkeypatch.setattr(ahead, "_future", lambda *_: future)
    fleet = Gpus.empty(2)
    ahead.looking_ahead(fleet, [40, 39], 1, 0)
    assert [each for each, many in enumerate(fleet.many) if many] == free


def test_a_seed_gives_the_same_shares_each_time() -> None:
    first, again = (ahead.shares(8, 10, 101) for _ in range(2))
    assert first == again
    assert all(0.8 < share <= 1 for share in first)
