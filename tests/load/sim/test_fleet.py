"""The allocator's rule on one node, held against one that tries everything."""

from collections.abc import Iterator
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tests.load.sim.fleet import Fleet, Where, over_committed, usable, used
from tests.load.sim.sizes import GIB, Card, Part, Size, apart, together

SMALL = Card(memory=8, compute=10, clients=3)
PART = st.builds(Part, st.sampled_from([1, 1, 1, 2, 3, 5, 9]), st.sampled_from([0, 0, 0, 4, 11]))
"""Mostly small, so that memory, compute and clients run out in turn."""
SIZE = st.builds(
    lambda make, parts: make(*parts), st.sampled_from([together, apart]), st.lists(PART, min_size=1, max_size=3)
)
STEP = st.one_of(SIZE, st.integers(0, 30))
"""A claim that comes, or which of those that are there goes."""


def everything(fleet: Fleet, node: int, size: Size) -> Iterator[Where]:
    """All ways to place a claim, in the order of the slice for the first part, then the second, and so on."""
    parts = size.parts or (Part(size.memory, size.compute),)
    for where in product(fleet.order[node], repeat=len(parts)):
        asked: dict[int, list[int]] = {}
        for gpu, part in zip(where, parts, strict=True):
            sums = asked.setdefault(gpu, [0, 0, 0])
            more = (part.memory, part.compute, 1 if size.parts else size.clients)
            asked[gpu] = [have + each for have, each in zip(sums, more, strict=True)]
        left = {gpu: (fleet.memory[gpu], fleet.compute[gpu], fleet.clients[gpu]) for gpu in asked}
        if all(have >= each for gpu in asked for have, each in zip(left[gpu], asked[gpu], strict=True)):
            yield where


@given(st.lists(STEP, max_size=40), st.permutations(range(4)))
def test_first_fit_is_the_first_of_everything_there_is_and_nothing_is_promised_twice(
    steps: list[Size | int], order: list[int]
) -> None:
    fleet = Fleet(nodes=1, per_node=4, card=SMALL)
    fleet.order[0] = list(order)
    there: list[tuple[Where, Size]] = []
    for step in steps:
        if isinstance(step, Size):
            before = (list(fleet.memory), list(fleet.compute), list(fleet.clients))
            where = fleet.fit(0, step)
            assert (fleet.memory, fleet.compute, fleet.clients) == before, "a search leaves nothing behind"
            assert where == next(everything(fleet, 0, step), None)
            if where is not None:
                fleet.take(where, step)
                there.append((where, step))
        elif there:
            fleet.give_back(*there.pop(step % len(there)))
        assert over_committed(fleet) == []
        assert fleet.held == sum(size.memory for _, size in there)
        assert fleet.pods == [len(there)]
        open_to_one_more = [memory for memory, clients in zip(fleet.memory, fleet.clients, strict=True) if clients]
        assert (fleet.most_memory, fleet.most_compute) == ([max(open_to_one_more, default=0)], [max(fleet.compute)])


def test_a_gpu_that_was_promised_more_than_it_has_is_found() -> None:
    for size in (Size(9), Size(1, 11), Size(1, 0, 4)):
        fleet = Fleet(nodes=2, per_node=2, card=SMALL)
        fleet.take((2,), size)
        assert over_committed(fleet) == [2], size


def test_the_order_of_the_slice_is_the_order_of_choice() -> None:
    fleet = Fleet(nodes=1, per_node=3)
    fleet.order[0] = [1, 2, 0]
    where = fleet.fit(0, Size(GIB))
    assert where == (1,)


def test_a_later_part_that_finds_no_room_sends_an_earlier_one_elsewhere() -> None:
    fleet = Fleet(nodes=1, per_node=2, card=SMALL)
    fleet.take((1,), Size(4))
    assert fleet.fit(0, apart(Part(4), Part(8))) == (1, 0)


def test_free_memory_in_pieces_too_small_is_not_usable() -> None:
    fleet = Fleet(nodes=1, per_node=2)
    assert usable(fleet, 80 * GIB) == 1
    fleet.take((0,), Size(60 * GIB))
    fleet.take((1,), Size(70 * GIB))
    assert (usable(fleet, 10 * GIB), usable(fleet, 20 * GIB), usable(fleet, 40 * GIB)) == (1, 2 / 3, 0)
    assert used(fleet) == 2
    fleet.take((0,), Size(20 * GIB))
    fleet.take((1,), Size(10 * GIB))
    assert usable(fleet, GIB) == 1, "nothing is free, so nothing is lost"
