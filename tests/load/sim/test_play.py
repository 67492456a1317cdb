"""A trace as it is played: who is placed, who waits, who comes first when there is room."""

import random

import pytest

from tests.load.sim.across import Across
from tests.load.sim.fleet import Fleet, over_committed
from tests.load.sim.order import Order
from tests.load.sim.play import Play, Rules
from tests.load.sim.sizes import GIB, Part, Pod, Size, apart
from tests.load.sim.traces import SEEDS, TRACES, churning, filling

WHOLE, HALF = Size(80 * GIB), Size(40 * GIB)


def single(*pods: Pod, every: float = 0, order: Order = Order.BINPACK, gpus: int = 1) -> Play:
    return Play(fleet=Fleet(nodes=1, per_node=gpus), rules=Rules(order=order, every=every)).run(pods, until=999)


def test_a_pod_that_fits_nowhere_waits_until_there_is_room() -> None:
    played = single(Pod(0, WHOLE, 0, 30), Pod(1, HALF, 10, 5))
    assert {number: each.at for number, each in played.placed.items()} == {0: 0, 1: 30}
    assert (played.waiting, played.fleet.held) == ({}, 0)


def test_who_waits_longest_is_first_of_those_for_whom_there_is_room() -> None:
    played = single(
        Pod(0, HALF, 0, 100), Pod(1, HALF, 0, 50), Pod(2, WHOLE, 1, 10), Pod(3, HALF, 2, 80), Pod(4, HALF, 3, 1)
    )
    assert {number: each.at for number, each in played.placed.items()} == {0: 0, 1: 0, 3: 50, 4: 100, 2: 130}


def test_of_two_sizes_that_fit_at_last_the_one_that_came_first_is_placed() -> None:
    for sizes in ((Size(50 * GIB), HALF), (HALF, Size(50 * GIB))):
        waiting = [Pod(number, size, number) for number, size in enumerate(sizes, 1)]
        assert set(single(Pod(0, WHOLE, 0, 30), *waiting).placed) == {0, 1}


def test_the_end_of_a_pod_changes_the_order_as_well() -> None:
    sizes = (Pod(0, Size(GIB)), Pod(1, Size(2 * GIB)), Pod(2, Size(5 * GIB), 1, 4), Pod(3, Size(GIB), 6))
    played = single(*sizes, order=Order.SPREAD, gpus=2)
    assert [each.where for each in played.placed.values()] == [(0,), (1,), (0,), (0,)]


def test_a_small_pod_is_not_held_up_by_a_large_one() -> None:
    played = single(Pod(0, HALF, 0), Pod(1, WHOLE, 1), Pod(2, HALF, 2))
    assert set(played.placed) == {0, 2}
    assert [pod.number for queue in played.waiting.values() for pod in queue] == [1]


def test_a_claim_on_two_gpus_waits_for_both() -> None:
    both = apart(Part(80 * GIB), Part(80 * GIB))
    played = single(Pod(0, HALF, 0, 10), Pod(1, both, 1, 5), Pod(2, HALF, 2, 20), gpus=2)
    assert played.placed[1].at == 22
    assert played.placed[1].where == (0, 1)


def test_between_two_looks_the_scheduler_goes_by_the_old_order() -> None:
    """Emptiest first, but all of a burst go to the GPU that is listed first."""
    burst = [Pod(number, Size(GIB), 0.1 * number) for number in range(1, 5)]
    assert [each.where for each in single(*burst, order=Order.SPREAD, gpus=4).placed.values()] == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]
    late = single(*burst, Pod(9, Size(GIB), 11), order=Order.SPREAD, gpus=4, every=10)
    assert [each.where for each in late.placed.values()] == [(0,), (0,), (0,), (0,), (1,)]
    assert late.enforcers.writes == 2, "one for the four of the burst, and one for the last"


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("across", Across)
def test_nothing_is_over_committed_and_nobody_waits_who_would_fit(name: str, across: Across) -> None:
    fleet = Fleet(nodes=3, per_node=4)
    pods = churning(name, SEEDS[0], 1.3, fleet.capacity, mean=300, seconds=1200)
    looked = []

    def look(now: float) -> None:
        looked.append(now)
        assert over_committed(fleet) == []
        assert [size for size in played.waiting for node in range(3) if fleet.fit(node, size)] == []

    played = Play(fleet=fleet, rules=Rules(across=across), seed=1)
    played.run(pods, [50.0 * number for number in range(24)], look, 1200)
    assert len(looked) == 24
    assert played.waiting, "more is asked for than there is"
    held = sum(each.pod.size.memory for each in played.placed.values() if each.at + each.pod.lives > 1200)
    assert fleet.held == held > 0.5 * fleet.capacity


def test_a_seed_gives_the_same_play_and_another_seed_another() -> None:
    pods = filling("mix", SEEDS[0], 1.2 * 32 * 80 * GIB)
    plays = [Play(fleet=Fleet(nodes=4), rules=Rules(), seed=seed).run(pods).placed for seed in (1, 1, 2)]
    assert plays[0] == plays[1] != plays[2]


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_the_same_each_time_and_has_the_sizes_it_says(name: str) -> None:
    pods = filling(name, SEEDS[1], 5000 * GIB)
    assert pods == filling(name, SEEDS[1], 5000 * GIB) != filling(name, SEEDS[2], 5000 * GIB)
    assert sum(pod.size.memory for pod in pods[:-1]) < 5000 * GIB <= sum(pod.size.memory for pod in pods)
    assert all(GIB // 2 <= pod.size.memory <= 80 * GIB for pod in pods)
    assert all(0 <= pod.size.compute <= 100 for pod in pods)


def test_the_mix_has_compute_and_several_containers_on_one_gpu_and_on_two() -> None:
    sizes = [TRACES["mix"](random.Random(number)) for number in range(500)]
    assert {size.clients for size in sizes} == {1, 2}
    assert {len(size.parts) for size in sizes} == {0, 2}
    assert 0.3 < sum(size.compute > 0 for size in sizes) / 500 < 0.7


@pytest.mark.parametrize("load", [0.5, 1.5])
def test_a_churn_asks_for_its_load(load: float) -> None:
    capacity = 800 * 80 * GIB
    pods = churning("uniform", SEEDS[0], load, capacity, mean=100, seconds=1000)
    asked = sum(pod.size.memory * pod.lives for pod in pods) / 1000
    assert asked / capacity == pytest.approx(load, rel=0.1)
