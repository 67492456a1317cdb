"""The best possible: proven on small cases by trying everything, never below what a placement reached."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.load.sim.best import best_fit, bound, fewest_gpus, most
from tests.load.sim.sizes import Card, Part, Size, apart

SMALL = Card(memory=10, compute=10, clients=3)
SIZE = st.builds(Size, st.integers(1, 10), st.integers(0, 10), st.integers(1, 3), st.just(()))
SIZES = st.lists(SIZE, max_size=6)


def tried(sizes: list[Size], gpus: int) -> int:
    """Put each pod on every GPU or none."""
    best = 0
    for where in product(range(gpus + 1), repeat=len(sizes)):
        sums = [[0, 0, 0] for _ in range(gpus + 1)]
        for gpu, size in zip(where, sizes, strict=True):
            sums[gpu] = [have + more for have, more in zip(sums[gpu], size[:3], strict=True)]
        if all(memory <= 10 and compute <= 10 and clients <= 3 for memory, compute, clients in sums[:gpus]):
            best = max(best, sum(each[0] for each in sums[:gpus]))
    return best


@given(SIZES, st.integers(1, 3))
def test_the_proven_best_is_what_trying_everything_finds(sizes: list[Size], gpus: int) -> None:
    assert most(sizes, SMALL, gpus) == tried(sizes, gpus)


@given(SIZES, st.integers(1, 3))
def test_nobody_passes_the_bound_and_best_fit_does_not_pass_the_best(sizes: list[Size], gpus: int) -> None:
    best = tried(sizes, gpus)
    assert best_fit(sizes, SMALL, gpus) <= best <= bound(sizes, SMALL, gpus) + 1e-6


def test_a_search_that_is_given_up_proves_nothing() -> None:
    sizes = [Size(4, 3)] * 3 + [Size(3, 4)] * 3 + [Size(5, 1)] * 3
    assert most(sizes, SMALL, 3, tries=2) is None
    assert most(sizes, SMALL, 3) is not None


def test_the_bound_knows_compute_and_clients() -> None:
    assert bound([Size(5)] * 9, SMALL, 2) == 20
    assert bound([Size(5)] * 3, SMALL, 2) == 15
    assert bound([Size(4, 10)] * 9, SMALL, 2) == pytest.approx(8)
    assert bound([Size(1)] * 99, SMALL, 2) == pytest.approx(6)
    assert bound([Size(4, 10)] * 9 + [Size(2)] * 3, SMALL, 2) == pytest.approx(14)


def test_best_fit_takes_the_fullest_gpu_and_parts_where_there_is_room() -> None:
    assert best_fit([Size(6), Size(3), Size(7), Size(4)], SMALL, 2) == 16
    assert best_fit([Size(6), Size(7), Size(3), Size(4)], SMALL, 2) == 20
    assert best_fit([apart(Part(8), Part(7)), Size(3)], SMALL, 2) == 18
    assert best_fit([Size(1)] * 9, SMALL, 2) == 6, "clients run out"


def test_fewer_gpus_than_that_hold_nobody() -> None:
    assert fewest_gpus([Size(6)] * 3, SMALL) == 3, "no two of them go together"
    assert fewest_gpus([Size(5)] * 4, SMALL) == 2
    assert fewest_gpus([Size(1, 5)] * 5, SMALL) == 3
    assert fewest_gpus([Size(1)] * 7, SMALL) == 3
    assert fewest_gpus([apart(Part(6), Part(6))], SMALL) == 2


def test_a_claim_on_several_gpus_is_refused_where_it_would_be_counted_wrongly() -> None:
    with pytest.raises(ValueError, match="several GPUs"):
        most([apart(Part(1), Part(2))], SMALL, 2)
