"""The order of a slice: that of the enforcer's own code, and as old as the enforcer's last look."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.resourceslices.devices import InventoryPolicy, build_devices, capacity_mib, device_name
from enforcer.resourceslices.devices import Order as Offered
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine
from tests.load.sim.fleet import Fleet
from tests.load.sim.order import Enforcers, Order, wanted
from tests.load.sim.sizes import GIB, Card, Size

GPUS = [gpu._replace(index=number, uuid=f"GPU-{number}") for number, gpu in enumerate(gpus_of(Machine.named("h100x4")))]
OFFERED = {Order.BINPACK: Offered.BINPACK, Order.SPREAD: Offered.SPREAD}


@given(st.lists(st.integers(0, 64), min_size=4, max_size=4), st.permutations(range(4)))
def test_the_order_is_that_of_the_enforcer_which_leaves_alone_what_will_do(held: list[int], before: list[int]) -> None:
    fleet = Fleet(nodes=1, per_node=4, card=Card(memory=capacity_mib(GPUS[0], InventoryPolicy())))
    fleet.order[0] = before
    for gpu, gib in enumerate(held):
        fleet.take((gpu,), Size(gib * GIB))
    by_uuid = {gpu.uuid: gib * GIB for gpu, gib in zip(GPUS, held, strict=True)}
    names = [device_name(GPUS[gpu]) for gpu in before]
    for order, offered in OFFERED.items():
        devices = build_devices(GPUS, InventoryPolicy(order=offered), reserved_mib=by_uuid, before=names).devices
        assert [device["name"] for device in devices[:-1]] == [
            device_name(GPUS[gpu]) for gpu in wanted(fleet, 0, order)
        ]


def test_binpack_lets_a_gpu_be_a_quarter_fuller_than_the_one_before_and_strict_does_not() -> None:
    fleet = Fleet(nodes=1, per_node=2)
    for gib, binpack in ((20, [0, 1]), (21, [1, 0])):
        fleet.take((1,), Size(gib * GIB))
        assert wanted(fleet, 0, Order.BINPACK) == binpack
        assert wanted(fleet, 0, Order.STRICT) == [1, 0]
        fleet.give_back((1,), Size(gib * GIB))


def test_a_fixed_order_is_never_written() -> None:
    fleet = Fleet(nodes=1, per_node=2)
    enforcers = Enforcers(fleet=fleet, order=Order.FIXED, every=0)
    fleet.take((1,), Size(GIB))
    assert enforcers.changed(0, 0.0) is None
    assert (fleet.order[0], enforcers.writes) == ([0, 1], 0)


def test_an_enforcer_that_sees_each_change_at_once_writes_only_another_order() -> None:
    fleet = Fleet(nodes=1, per_node=2)
    enforcers = Enforcers(fleet=fleet, order=Order.STRICT, every=0)
    for gpu, order, writes in ((0, [0, 1], 0), (1, [0, 1], 0), (1, [1, 0], 1)):
        fleet.take((gpu,), Size(GIB))
        enforcers.changed(0, 0.0)
        assert (fleet.order[0], enforcers.writes) == (order, writes)


def test_until_the_enforcers_look_the_old_order_stands_and_changes_in_between_are_one_write() -> None:
    fleet = Fleet(nodes=1, per_node=2)
    enforcers = Enforcers(fleet=fleet, order=Order.SPREAD, every=10)
    fleet.take((0,), Size(GIB))
    look = enforcers.changed(0, 3.0)
    fleet.take((0,), Size(GIB))
    assert (look, enforcers.changed(0, 4.0), fleet.order[0]) == (10.0, None, [0, 1])
    enforcers.look(0)
    assert (fleet.order[0], enforcers.writes) == ([1, 0], 1)
    fleet.take((1,), Size(GIB))
    assert enforcers.changed(0, 10.0) == 20.0, "a look at the very moment was that one"


@pytest.mark.parametrize("node", range(5))
def test_enforcers_look_at_different_times_and_each_within_its_interval(node: int) -> None:
    enforcers = Enforcers(fleet=Fleet(nodes=5, per_node=1), order=Order.BINPACK, every=10)
    look = enforcers.changed(node, 123.0)
    assert look is not None
    assert 123 < look <= 133
    others = [Enforcers(fleet=Fleet(nodes=5), order=Order.BINPACK).changed(each, 123.0) for each in range(5)]
    assert len(set(others)) == 5
