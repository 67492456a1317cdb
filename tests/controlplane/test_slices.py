"""The published GPUs as a real API server keeps them: accepted, spelled its way, and not written twice."""

from dataclasses import replace

import pytest

from enforcer.inventory import InventoryPolicy, Mode, offer, resource_slices
from enforcer.slices import SlicePublisher
from gpushare.cluster import CORE_V1, RESOURCE_V1, path
from tests.cluster.controlplane import ControlPlane
from tests.controlplane.objects import node
from tests.fakegpu.publish import gpus_of
from tests.fakegpu.state import MACHINES, Machine

pytestmark = pytest.mark.controlplane


@pytest.mark.parametrize("name", sorted(file.stem for file in MACHINES.glob("*.machine")))
@pytest.mark.parametrize("mode", Mode)
def test_every_machine_is_accepted_and_written_once(plane: ControlPlane, name: str, mode: Mode) -> None:
    cluster = plane.cluster()
    where = f"slices-{name}-{mode}"
    uid = cluster.create(path(CORE_V1, "nodes"), node(where))["metadata"]["uid"]
    publisher = SlicePublisher(cluster, where)
    wanted = resource_slices(where, offer(gpus_of(Machine.named(name), where), InventoryPolicy(mode=mode)).devices, uid)
    assert publisher.publish(wanted)
    assert not publisher.publish(wanted)
    publisher.withdraw()


@pytest.mark.parametrize("left_mib", [513, 1024, 15872, 1024 * 1024, 1536 * 1024])
def test_every_amount_comes_back_as_the_same_amount(plane: ControlPlane, left_mib: int) -> None:
    cluster = plane.cluster()
    card = replace(gpus_of(Machine.named("single-16g"))[0], memory_mib=left_mib, reserved_mib=0)
    wanted = resource_slices("slices-amount", offer([card], InventoryPolicy(context_mib=0)).devices)
    publisher = SlicePublisher(cluster, "slices-amount")
    assert publisher.publish(wanted)
    assert not publisher.publish(wanted)
    publisher.withdraw()


def test_a_large_node_takes_several_slices_of_one_generation(plane: ControlPlane) -> None:
    cluster = plane.cluster()
    card = gpus_of(Machine.named("single-16g"))[0]
    cards = [replace(card, index=i, uuid=f"GPU-{i}") for i in range(130)]
    publisher = SlicePublisher(cluster, "slices-large")
    for count, generation, slices in ((130, 1, 3), (63, 2, 1), (64, 3, 2)):
        publisher.publish(resource_slices("slices-large", offer(cards[:count], InventoryPolicy()).devices))
        items, _ = cluster.list(path(RESOURCE_V1, "resourceslices"), fieldSelector="spec.nodeName=slices-large")
        pools = [item["spec"]["pool"] for item in items]
        assert pools == [{"name": "slices-large", "generation": generation, "resourceSliceCount": slices}] * slices
    publisher.withdraw()
