"""Sizes of scale runs: what a seed gives, and when all of them must be placed whoever places them."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.load.scale.churn import FILL, Course
from tests.load.scale.loads import LARGEST_MIB, SMALLEST_MIB, WHOLE, Size, asks_too_much, mixed, must_all_fit
from tests.load.scale.placing import GPU_MIB, PER_NODE

SIZES = st.lists(st.builds(Size, st.integers(1, 12), st.sampled_from([0, 10, 40])), min_size=1, max_size=12)


def test_a_seed_gives_the_same_sizes_and_another_seed_others() -> None:
    assert mixed(1, 50) == mixed(1, 50) != mixed(2, 50)
    drawn = {each.memory_mib for each in mixed(3, 2000)}
    assert (min(drawn), max(drawn)) == (SMALLEST_MIB, LARGEST_MIB)


def all_placed(sizes: list[Size], gpus: int, memory: int, chance: random.Random) -> bool:
    """Put each on any GPU that has room, in the order given; the choice is the worst there is: at random."""
    free = [[memory, WHOLE] for _ in range(gpus)]
    for each in sizes:
        fitting = [gpu for gpu in free if gpu[0] >= each.memory_mib and gpu[1] >= each.compute]
        if not fitting:
            return False
        gpu = chance.choice(fitting)
        gpu[0] -= each.memory_mib
        gpu[1] -= each.compute
    return True


@given(SIZES, st.integers(1, 12), st.integers(1, 20), st.randoms(use_true_random=False))
def test_what_must_fit_is_placed_by_whoever_leaves_nobody_waiting(
    sizes: list[Size], gpus: int, memory: int, chance: random.Random
) -> None:
    if must_all_fit(sizes, gpus, memory):
        assert not asks_too_much(sizes, gpus, memory)
        assert all_placed(sizes, gpus, memory, chance)


def test_what_must_fit_is_not_always_nothing() -> None:
    assert must_all_fit([Size(5, 10)] * 3, 3, 10)
    assert not must_all_fit([Size(11)], 3, 10), "larger than any GPU"
    assert not must_all_fit([Size(6)] * 3, 1, 10)


def test_the_full_run_is_one_that_must_fit_and_the_narrow_one_is_not() -> None:
    for seed in range(1, 6):
        assert must_all_fit(mixed(seed, 1000), 100 * PER_NODE, GPU_MIB)
        assert asks_too_much(mixed(seed, 1000), 40 * PER_NODE, GPU_MIB)


def test_a_course_has_as_many_nodes_as_it_fills_to_eighty_percent() -> None:
    course = Course(rate=10, warm=120, seconds=600)
    sizes = course.sizes()
    alive = course.rate * sum(course.life) / 2
    full = alive * sum(each.memory_mib for each in sizes) / len(sizes) / (course.nodes() * PER_NODE * GPU_MIB)
    assert len(sizes) == 7200
    assert abs(full - FILL) < 0.02
