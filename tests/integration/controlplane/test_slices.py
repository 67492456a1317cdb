"""The published GPUs as a real API server keeps them: accepted, spelled its way, and not written twice."""

import threading

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.nvml.device_health import Effect, GpuConditions
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.types import Mode
from enforcer.resourceslices import contention_monitor
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.contention_monitor import ContentionMonitor
from enforcer.resourceslices.controller import SliceController
from enforcer.resourceslices.devices import InventoryPolicy, build_devices, device_name, resource_slices
from enforcer.resourceslices.publisher import SlicePublisher
from enforcer.status.api_writer import ApiWriter
from enforcer.status.events import EventRecorder
from gpushare.contract import EXCLUDED_GPUS, NODE_LABEL
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, KubeClient, path
from gpushare.reasons import Reason
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import MACHINES, Machine
from tests.integration.controlplane.objects import node
from tests.support.slices import Own
from tests.support.wiring import fixed_modes, hidden_memory, limits, sampler
from tests.testbed.cluster.controlplane import ControlPlane

pytestmark = pytest.mark.controlplane


@pytest.mark.parametrize("name", sorted(file.stem for file in MACHINES.glob("*.machine")))
@pytest.mark.parametrize("mode", Mode)
def test_every_machine_is_accepted_and_written_once(plane: ControlPlane, name: str, mode: Mode) -> None:
    cluster = plane.cluster()
    where = f"slices-{name}-{mode}"
    uid = cluster.create(path(CORE_V1, "nodes"), node(where))["metadata"]["uid"]
    publisher = SlicePublisher(cluster, where)
    wanted = resource_slices(
        where, build_devices(gpus_of(Machine.named(name), where), InventoryPolicy(mode=mode)).devices, uid
    )
    assert publisher.publish(wanted)
    assert not publisher.publish(wanted)
    publisher.publish(())


@pytest.mark.parametrize("left_mib", [513, 1024, 15872, 1024 * 1024, 1536 * 1024])
def test_every_amount_comes_back_as_the_same_amount(plane: ControlPlane, left_mib: int) -> None:
    cluster = plane.cluster()
    card = gpus_of(Machine.named("single-16g"))[0]._replace(memory_mib=left_mib, reserved_mib=0)
    wanted = resource_slices("slices-amount", build_devices([card], InventoryPolicy(context_mib=0)).devices)
    publisher = SlicePublisher(cluster, "slices-amount")
    assert publisher.publish(wanted)
    assert not publisher.publish(wanted)
    publisher.publish(())


def test_a_large_node_takes_several_slices_of_one_generation(plane: ControlPlane) -> None:
    cluster = plane.cluster()
    card = gpus_of(Machine.named("single-16g"))[0]
    cards = [card._replace(index=i, uuid=f"GPU-{i}") for i in range(130)]
    publisher = SlicePublisher(cluster, "slices-large")
    for count, generation, slices in ((130, 1, 3), (63, 2, 1), (64, 3, 2)):
        publisher.publish(resource_slices("slices-large", build_devices(cards[:count], InventoryPolicy()).devices))
        items, _ = cluster.list(path(RESOURCE_V1, "resourceslices"), fieldSelector="spec.nodeName=slices-large")
        pools = [item["spec"]["pool"] for item in items]
        assert pools == [{"name": "slices-large", "generation": generation, "resourceSliceCount": slices}] * slices
    publisher.publish(())


@pytest.mark.parametrize("effect", [Effect.NO_SCHEDULE, Effect.NO_EXECUTE])
def test_a_taint_comes_goes_and_is_read_back_and_each_is_written_once(plane: ControlPlane, effect: Effect) -> None:
    where = f"slices-{effect}".lower()
    publisher = SlicePublisher(plane.cluster(), where)
    cards = gpus_of(Machine.named("pair-16g"), where)
    policy = InventoryPolicy(health_taint=effect)
    for ill in ({}, {cards[0].uuid: Reason.GPU_LOST}, {cards[1].uuid: Reason.MPS_UNREACHABLE}, {}):
        wanted = resource_slices(where, build_devices(cards, policy, standing=GpuConditions(unhealthy=ill)).devices)
        assert publisher.publish(wanted)
        assert not publisher.publish(wanted)
        assert publisher.unhealthy() == ill
    publisher.publish(())


def test_what_is_left_out_is_noted_and_notes_of_others_stay(plane: ControlPlane) -> None:
    cluster = plane.cluster()
    publisher = SlicePublisher(cluster, "slices-noted")
    cards = gpus_of(Machine.named("pair-16g"), "slices-noted")
    name = path(RESOURCE_V1, "resourceslices", "slices-noted-gpu-share.io-0")
    for contended in ({}, {cards[0].uuid: "it is X's"}, {}):
        found = build_devices(cards, InventoryPolicy(), standing=GpuConditions(contended=contended))
        wanted = resource_slices("slices-noted", found.devices, left_out=found.left_out)
        assert publisher.publish(wanted)
        cluster.patch(name, {"metadata": {"annotations": {"example.com/note": "theirs"}}})
        assert not publisher.publish(wanted)
        notes = cluster.get(name)["metadata"]["annotations"]
        assert (notes["example.com/note"], cards[0].uuid in notes.get(EXCLUDED_GPUS, "")) == ("theirs", bool(contended))
    publisher.publish(())


def test_a_gpu_another_driver_publishes_is_left_out_told_on_the_node_and_healed_when_it_goes(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention_monitor, "FRESH", 0.0)
    monkeypatch.setattr(contention_monitor, "QUIET", -1.0)
    cluster, where = plane.cluster(), "slices-contended"
    body = node(where)
    body["metadata"]["labels"] = {NODE_LABEL: "true"}
    cluster.create(path(CORE_V1, "nodes"), body)
    cards = gpus_of(Machine.named("pair-16g"), where)
    modes, writer = fixed_modes(), ApiWriter()
    reporter = EventRecorder(cluster, where, writer)
    contention = ContentionMonitor(cluster, where, list, reporter, threading.Event())
    availability = GpuAvailability(contention, None, modes, limits(), sampler(tuple), DriverUpgrade())
    offering = SliceController(
        cluster, where, InventoryPolicy(), availability, Own(), modes, hidden_memory(sampler(tuple))
    )
    rival = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "rival"},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": where,
            "pool": {"name": where, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": cards[0].uuid}}}],
        },
    }  # fmt: skip

    def offered() -> list[str]:
        offering.reconcile([GpuSnapshot(gpu=card) for card in cards], [])
        writer.run_once()
        assert offering.problem is None
        return sorted(_devices(cluster, where))

    one, two = map(device_name, cards)
    assert offered() == sorted([one, two, "status"])
    cluster.create(path(RESOURCE_V1, "resourceslices"), rival)
    assert offered() == [two, "status"]
    assert offered() == [two, "status"]
    cluster.delete(path(RESOURCE_V1, "resourceslices", "rival"))
    assert offered() == sorted([one, two, "status"])
    assert _reasons(cluster, where) == [Reason.CONTENDED, Reason.RECOVERED]
    SlicePublisher(cluster, where).publish(())


def _devices(cluster: KubeClient, where: str) -> list[str]:
    items, _ = cluster.list(
        path(RESOURCE_V1, "resourceslices"), fieldSelector=f"spec.nodeName={where},spec.driver=gpu-share.io"
    )
    return [device["name"] for item in items for device in item["spec"]["devices"]]


def _reasons(cluster: KubeClient, where: str) -> list[str]:
    items, _ = cluster.list(path(EVENTS_V1, "events", namespace="default"))
    mine = [item for item in items if item["regarding"] == {**item["regarding"], "kind": "Node", "name": where}]
    return [item["reason"] for item in sorted(mine, key=lambda item: str(item["eventTime"]))]
