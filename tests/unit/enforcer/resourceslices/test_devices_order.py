"""The order of GPUs is written anew where it matters, and left alone where it would do."""

import random
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.resourceslices.devices import (
    REORDER_TOLERANCE,
    InventoryPolicy,
    Order,
    build_devices,
    capacity_mib,
    device_name,
)
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine

GPUS = gpus_of(Machine.named("quad-16g"))
NAMES = [device_name(gpu) for gpu in GPUS]
CARD = capacity_mib(GPUS[0], InventoryPolicy())
HELD = st.tuples(*[st.integers(0, CARD)] * len(GPUS))


def offered(order: Order, held: Mapping[str, int], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = build_devices(GPUS, InventoryPolicy(order=order), reserved_mib=held, before=before)
    return tuple(device["name"] for device in found.devices)


def by_uuid(held: tuple[int, ...]) -> dict[str, int]:
    return dict(zip((gpu.uuid for gpu in GPUS), held, strict=True))


def test_packing_leaves_an_order_that_nearly_fits_and_corrects_one_that_does_not() -> None:
    first = offered(Order.BINPACK, by_uuid((0, 0, 0, 0)))
    assert first == (*NAMES, "status")
    quarter = CARD // 4
    assert offered(Order.BINPACK, by_uuid((0, quarter, 0, 0)), first) == first
    second = offered(Order.BINPACK, by_uuid((0, quarter + 1, 0, 0)), first)
    assert second == (NAMES[1], NAMES[0], NAMES[2], NAMES[3], "status")
    assert offered(Order.BINPACK, by_uuid((quarter, 0, 0, 0)), second) == second


def test_spreading_moves_a_gpu_behind_the_emptier_ones_as_soon_as_it_holds_more() -> None:
    first = offered(Order.SPREAD, by_uuid((0, 0, 0, 0)))
    second = offered(Order.SPREAD, by_uuid((512, 0, 0, 0)), first)
    assert second == (*NAMES[1:], NAMES[0], "status")
    assert offered(Order.SPREAD, by_uuid((512, 0, 512, 0)), second) == (
        NAMES[1],
        NAMES[3],
        NAMES[0],
        NAMES[2],
        "status",
    )


def test_what_is_equally_full_is_never_written_again_for_its_index() -> None:
    other_way = (*reversed(NAMES), "status")
    for order in Order:
        assert offered(order, by_uuid((512, 512, 512, 512)), other_way) == other_way


def test_another_set_of_gpus_is_sorted_again() -> None:
    for before in (("gone", *NAMES[1:]), (*NAMES[::-1], "gone")[2:]):
        assert offered(Order.BINPACK, by_uuid((0, 0, 9, 0)), tuple(before))[:2] == (NAMES[2], NAMES[0])


@given(held=HELD, before=st.permutations(NAMES), order=st.sampled_from(list(Order)))
def test_whatever_stood_there_nothing_is_further_out_of_order_than_allowed(
    held: tuple[int, ...], before: list[str], order: Order
) -> None:
    found = offered(order, by_uuid(held), (*before, "status"))
    sign = -1 if order is Order.BINPACK else 1
    rank = {name: sign * mib / CARD for name, mib in zip(NAMES, held, strict=True)}
    ranks = [rank[name] for name in found if name != "status"]
    assert sorted(found) == sorted([*NAMES, "status"])
    assert all(max(ranks[: at + 1]) - ranks[at] <= REORDER_TOLERANCE[order] for at in range(len(ranks)))
    assert found == (*before, "status") or all(one <= two for one, two in pairwise(ranks))
    assert offered(order, by_uuid(held), found) == found


@pytest.mark.parametrize(("order", "most"), [(Order.BINPACK, 0.15), (Order.SPREAD, 1.0)])
def test_under_churn_packing_writes_for_few_of_the_claims(order: Order, most: float) -> None:
    """First fit by the order that was written; shares of 1 to 8 GiB come and go on four GPUs that are mostly full."""
    chance, held, tenants = random.Random(8), [0] * len(GPUS), list[tuple[int, int]]()
    standing = offered(order, by_uuid((0, 0, 0, 0)))
    writes = 0
    for _ in range(400):
        if tenants and chance.random() < sum(held) / CARD / len(GPUS):
            gpu, mib = tenants.pop(chance.randrange(len(tenants)))
            held[gpu] -= mib
        mib = chance.choice([1024, 2048, 4096, 8192])
        fits = [NAMES.index(name) for name in standing[:-1] if held[NAMES.index(name)] + mib <= CARD]
        if fits:
            held[fits[0]] += mib
            tenants.append((fits[0], mib))
        now = offered(order, by_uuid(tuple(held)), standing)
        writes, standing = writes + (now != standing), now
    assert 0 < writes <= most * 400
