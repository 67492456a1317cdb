"""What a node offers: which GPUs, how much of each, in which order, in how many slices."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.nvml.device_health import GpuConditions
from enforcer.nvml.types import Gpu
from enforcer.quota.sharing_mode import SharingModes
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import (
    MAX_DEVICES,
    InventoryPolicy,
    Order,
    architecture,
    build_devices,
    capacity_mib,
    device_name,
    quantity,
    resource_slices,
    select_gpus,
    version,
)
from gpushare.errors import ConfigError
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.state import Machine

FOUR = gpus_of(Machine.named("h100x4"))
MIXED = gpus_of(Machine.named("mixed"))


def _names(devices: Any) -> list[str]:
    return [device["name"] for device in devices]


def _called(*indices: int, of: Sequence[Gpu] = FOUR) -> list[str]:
    return [*(device_name(of[index]) for index in indices), "status"]


def test_a_gpu_is_offered_with_what_shares_can_have() -> None:
    gpu = FOUR[2]
    device = build_devices([gpu], InventoryPolicy()).devices[0]
    assert device["name"] == gpu.uuid.lower()
    assert device["allowMultipleAllocations"] is True
    assert device["attributes"] == {
        "kind": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "model": {"string": "NVIDIA H100 80GB HBM3"},
        "architecture": {"string": "Hopper"},
        "mode": {"string": "mps"},
        "pciBusID": {"string": "00000000:28:00.0"},
        "driverVersion": {"version": "570.86.15"},
        "cudaVersion": {"version": "12.8.0"},
        "computeCapability": {"version": "9.0.0"},
        "index": {"int": 2},
        "minor": {"int": 2},
        "memoryMiB": {"int": 81559},
    }
    assert device["capacity"] == {
        "memory": {
            "value": "79984Mi",
            "requestPolicy": {"default": "79984Mi", "validRange": {"min": "512Mi", "step": "1Mi"}},
        },
        "compute": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
        "clients": {"value": "48", "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }


@pytest.mark.parametrize(
    ("uuid", "name"),
    [
        ("GPU-7C5D1F2E-0000-4000-8000-00000000000a", "gpu-7c5d1f2e-0000-4000-8000-00000000000a"),
        ("MIG-7c5d1f2e-0000-4000-8000-00000000000a", "mig-7c5d1f2e-0000-4000-8000-00000000000a"),
        ("MIG-GPU-7c5d1f2e-0000-4000-8000-00000000000a/1/0", "mig-gpu-7c5d1f2e-0000-4000-8000-00000000000a-1-0"),
        (f"GPU-{'x' * 80}", f"gpu-{'x' * 59}"),
    ],
)
def test_a_device_is_called_by_its_uuid_whatever_its_index(uuid: str, name: str) -> None:
    assert {device_name(FOUR[0]._replace(uuid=uuid, index=index)) for index in range(3)} == {name}


def test_the_status_device_comes_last_and_has_no_capacity() -> None:
    assert build_devices([], InventoryPolicy()).devices == (
        {"name": "status", "allowMultipleAllocations": True, "attributes": {"kind": {"string": "status"}}},
    )
    assert _names(build_devices(FOUR, InventoryPolicy()).devices) == _called(0, 1, 2, 3)


def test_memory_leaves_out_reserve_context_and_foreign_use() -> None:
    gpu = FOUR[0]
    assert capacity_mib(gpu, InventoryPolicy()) == 81559 - 551 - 1024
    assert capacity_mib(gpu, InventoryPolicy(context_mib=300)) == 81559 - 551 - 300
    assert capacity_mib(gpu, InventoryPolicy(), mode=Mode.TIME_SLICING) == 81559 - 551
    assert capacity_mib(gpu, InventoryPolicy(), 5000) == 81559 - 551 - 1024 - 5000
    assert capacity_mib(gpu, InventoryPolicy(), 99999) == 0
    devices = build_devices(FOUR, InventoryPolicy(), foreign_mib={gpu.uuid: 64}).devices
    assert [d["capacity"]["memory"]["value"] for d in devices[:2]] == ["79920Mi", "79984Mi"]


def test_binpack_offers_the_fullest_first_and_spread_the_emptiest() -> None:
    held = {FOUR[1].uuid: 40000, FOUR[3].uuid: 60000}
    packed = build_devices(FOUR, InventoryPolicy(order=Order.BINPACK), reserved_mib=held).devices
    assert _names(packed) == _called(3, 1, 0, 2)
    spread = build_devices(FOUR, InventoryPolicy(order=Order.SPREAD), reserved_mib=held).devices
    assert _names(spread) == _called(0, 2, 1, 3)


def test_full_is_measured_against_the_size_of_the_card() -> None:
    small, _, large = MIXED
    held = {small.uuid: 8000, large.uuid: 9000}
    assert _names(build_devices(MIXED, InventoryPolicy(), reserved_mib=held).devices) == _called(0, 2, of=MIXED)


def test_what_cannot_be_shared_is_left_out_with_a_reason() -> None:
    found = build_devices(MIXED, InventoryPolicy())
    assert [(out.uuid, "MIG" in out.why) for out in found.left_out] == [(MIXED[1].uuid, True)]
    old = FOUR[0]._replace(compute_capability=(6, 1))
    assert "Volta" in build_devices([old], InventoryPolicy()).left_out[0].why
    assert build_devices([old], InventoryPolicy(mode=Mode.TIME_SLICING)).left_out == ()


def test_the_mode_of_a_device_is_that_of_its_gpu_now() -> None:
    ways = SharingModes(Mode.TIME_SLICING, {FOUR[1].uuid: Mode.TIME_SLICING, FOUR[2].uuid: Mode.MPS})
    found = build_devices(FOUR, InventoryPolicy(), ways=ways)
    assert [each["attributes"]["mode"]["string"] for each in found.devices[:-1]] == ["time-slicing"] * 3
    assert [each["capacity"]["memory"]["value"] for each in found.devices[:-1]] == ["81008Mi"] * 3, "no MPS context"
    assert [(each.uuid, each.why) for each in found.left_out] == [
        (
            FOUR[2].uuid,
            "the sharing mode changes from mps to time-slicing when the last prepared claim on the GPU is unprepared",
        )
    ]
    unknown = build_devices(FOUR, InventoryPolicy(), ways=SharingModes(None, {}, "who knows"))
    assert (len(unknown.devices), {each.why for each in unknown.left_out}) == (1, {"who knows"})


@pytest.mark.parametrize(("left", "offered"), [(0, False), (512, False), (513, True)])
def test_a_gpu_with_no_room_for_the_smallest_share_is_left_out(left: int, offered: bool) -> None:  # noqa: FBT001
    gpu = FOUR[0]
    foreign = capacity_mib(gpu, InventoryPolicy()) - left
    found = build_devices([gpu], InventoryPolicy(), foreign_mib={gpu.uuid: foreign})
    assert (len(found.devices) == 2) is offered
    assert bool(found.left_out) is not offered


def test_operators_narrow_by_uuid_or_index() -> None:
    assert select_gpus(FOUR, None) == FOUR
    assert select_gpus(FOUR, f" {FOUR[3].uuid} , 1,1, ") == (FOUR[1], FOUR[3])


@pytest.mark.parametrize("wanted", ["", " , ", "7", "GPU-unknown", "0,x", "01", "-1"])
def test_an_entry_that_names_no_gpu_is_an_error_that_lists_them(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"gpu-share.io/gpus: .* write one or more of 0 \(GPU-4a8") as caught:
        select_gpus(FOUR, wanted)
    assert "remove the annotation" in caught.value.message


def test_devices_are_laid_out_over_as_many_slices_as_they_need() -> None:
    card = FOUR[0]._replace(model="NVIDIA " + "x" * 80)
    gpus = [card._replace(index=i, uuid=f"GPU-{i}") for i in range(130)]
    devices = build_devices(gpus, InventoryPolicy()).devices
    slices = resource_slices("node-1", devices, "u-1")
    assert [len(s["spec"]["devices"]) for s in slices] == [MAX_DEVICES, MAX_DEVICES, 3]
    laid = [d for s in slices for d in s["spec"]["devices"]]
    assert [laid[0]["name"], *laid[1:]] == ["status", *devices[:-1]], "what every pod wants is tried first"
    assert len({s["metadata"]["name"] for s in slices}) == 3
    assert all(s["spec"]["pool"] == {"name": "node-1", "generation": 1, "resourceSliceCount": 3} for s in slices)
    assert slices[0]["metadata"]["ownerReferences"][0] == {
        "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u-1",
    }  # fmt: skip
    assert len(devices[0]["attributes"]["model"]["string"]) == 64
    assert "ownerReferences" not in resource_slices("node-1", devices)[0]["metadata"]


@pytest.mark.parametrize(
    ("mib", "text"),
    [(0, "0"), (1, "1Mi"), (1024, "1Gi"), (1536, "1536Mi"), (81920, "80Gi"), (1048576, "1Ti"), (1049600, "1025Gi")],
)
def test_quantities_are_written_as_the_server_writes_them(mib: int, text: str) -> None:
    assert quantity(mib) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("535.309.01", "535.309.1"),
        ("570.86.15", "570.86.15"),
        ("12.8", "12.8.0"),
        ("615.71.09.2", "615.71.9"),
        ("x", "0.0.0"),
    ],
)
def test_versions_are_semantic(text: str, expected: str) -> None:
    assert version(text) == expected


@pytest.mark.parametrize(
    ("capability", "name"),
    [((3, 5), "Unknown"), ((6, 1), "Pascal"), ((7, 0), "Volta"), ((7, 5), "Turing"), ((8, 6), "Ampere"),
     ((8, 9), "Ada Lovelace"), ((9, 0), "Hopper"), ((10, 3), "Blackwell"), ((12, 0), "Blackwell")],
)  # fmt: skip
def test_architectures_go_by_compute_capability(capability: tuple[int, int], name: str) -> None:
    assert architecture(capability) == name


@given(
    held=st.dictionaries(st.sampled_from([gpu.uuid for gpu in FOUR]), st.integers(0, 100_000)),
    order=st.sampled_from(Order),
    gpus=st.permutations(FOUR),
)
def test_the_order_depends_on_nothing_but_what_is_lowered(held: dict[str, int], order: Order, gpus: list[Gpu]) -> None:
    policy = InventoryPolicy(order=order)
    assert build_devices(gpus, policy, reserved_mib=held) == build_devices(FOUR, policy, reserved_mib=held)


def test_the_device_says_who_keeps_limits_once_that_is_known() -> None:
    standing = GpuConditions(backends={FOUR[0].uuid: "mps-v2"})
    first, second, *_ = build_devices(FOUR, InventoryPolicy(), standing=standing).devices
    assert first["attributes"]["limitBackend"] == {"string": "mps-v2"}
    assert "limitBackend" not in second["attributes"]


def test_only_a_gpu_of_mps_limits_the_number_of_clients() -> None:
    mps, sliced = (build_devices(FOUR, InventoryPolicy(mode=mode)).devices[0] for mode in (Mode.MPS, Mode.TIME_SLICING))
    assert mps["capacity"].keys() - sliced["capacity"].keys() == {"clients"}
