"""Which node is taken of those that fit, and which are looked at at all."""

import random
from collections import Counter

import pytest

from tests.load.sim.across import Across, Scheduler, looked_for
from tests.load.sim.fleet import Fleet
from tests.load.sim.sizes import GIB, Part, Size, apart

ONE = Size(GIB)


def scheduler(across: Across, *pods: int) -> Scheduler:
    """Nodes with so many pods each."""
    fleet = Fleet(nodes=len(pods))
    for node, count in enumerate(pods):
        for _ in range(count):
            fleet.take((node * fleet.per_node,), ONE)
    return Scheduler(fleet=fleet, across=across, chance=random.Random(1))


@pytest.mark.parametrize(
    ("nodes", "found"), [(10, 10), (99, 99), (100, 100), (250, 120), (1000, 420), (5000, 500), (9000, 450)]
)
def test_in_a_large_fleet_the_scheduler_looks_at_some_nodes_only(nodes: int, found: int) -> None:
    assert looked_for(nodes) == found


def test_each_search_begins_where_the_last_one_ended() -> None:
    one = scheduler(Across.TIES, *[0] * 250)
    seen: Counter[range] = Counter()
    for _ in range(199):
        node = one.choose(ONE)
        assert node is not None
        seen[range(120) if node < 120 else range(120, 240) if node < 240 else range(240, 250)] += 1
        assert one._start in range(250)
    assert one._start == 199 * 120 % 250 > 0
    assert min(seen.values()) > 0, "all nodes have their turn"


def test_without_affinities_the_node_with_fewest_pods_is_taken_and_ties_are_broken_at_random() -> None:
    one = scheduler(Across.NONE, 7, 3, 7, 3)
    assert {one.choose(ONE) for _ in range(60)} == {1, 3}


@pytest.mark.parametrize(
    ("across", "nodes"), [(Across.BINPACK, {2}), (Across.SPREAD, {1}), (Across.TIES, {0, 1, 2, 3})]
)
def test_an_affinity_outweighs_how_full_a_node_is(across: Across, nodes: set[int]) -> None:
    one = scheduler(across, 7, 3, 30, 4)
    assert {one.choose(ONE) for _ in range(100)} == nodes


@pytest.mark.parametrize("across", Across)
def test_only_a_node_that_fits_is_taken(across: Across) -> None:
    one = scheduler(across, 9, 0, 1)
    for gpu in one.fleet.gpus(1):
        one.fleet.take((gpu,), Size(80 * GIB))
    assert {one.choose(Size(80 * GIB)) for _ in range(50)} <= {0, 2}
    for gpu in (*one.fleet.gpus(0), *one.fleet.gpus(2)):
        one.fleet.take((gpu,), Size(one.fleet.memory[gpu]))
    assert one.choose(ONE) is None


def test_what_another_resource_leaves_no_room_for_does_not_fit() -> None:
    one = scheduler(Across.NONE, 0, 0)
    for gpu in one.fleet.gpus(0):
        one.fleet.take((gpu,), Size(GIB, 90))
    for gpu in one.fleet.gpus(1):
        one.fleet.take((gpu,), Size(GIB, 0, 48))
    assert one.choose(Size(GIB, 20)) is None
    assert one.choose(Size(GIB, 10)) == 0


@pytest.mark.parametrize("size", [ONE, Size(3 * GIB, 20), Size(2 * GIB, 0, 2), apart(Part(GIB), Part(2 * GIB, 30))])
def test_the_quick_look_at_a_node_finds_the_same_as_the_allocator(size: Size) -> None:
    """Nodes are filled at random until nothing fits: with memory, compute or clients running out first."""
    chance = random.Random("quick look")
    one = scheduler(Across.TIES, *[0] * 6)
    fitting = set(range(6))
    lonely = 0
    while fitting:
        assert set(one._fitting(size)) == fitting
        gpu = chance.randrange(48)
        memory = min(one.fleet.memory[gpu], chance.randint(0, 20) * GIB)
        compute = min(one.fleet.compute[gpu], chance.choice((0, 30, 60)))
        clients = chance.choice((0, one.fleet.clients[gpu] // 2, max(0, one.fleet.clients[gpu] - 1)))
        one.fleet.take((gpu,), Size(memory, compute, clients))
        lonely += 1 in one.fleet.clients
        fitting = {node for node in range(6) if one.fleet.fit(node, size) is not None}
    assert one.choose(size) is None
    assert lonely, "some GPU had room for one client more and no second"
