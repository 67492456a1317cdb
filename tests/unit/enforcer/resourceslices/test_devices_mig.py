"""MIG instances: read through their own handles, offered as devices of their own, each for one user."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.attribution.usage import merge_gpu_lists
from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.nvml.device_health import GpuConditions
from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import Gpu
from enforcer.quota.sharing_mode import SharingModes
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import InventoryPolicy, build_devices, device_name, select_gpus
from gpushare import contract
from gpushare.errors import PrepareError
from gpushare.reasons import Reason
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault, Machine, Sim
from tests.unit.enforcer.dra.objects import NODE, allocated, by_hand, namespace, using
from tests.unit.enforcer.nvml.test_reader import Broken

CUT, WHOLE, *INSTANCES = gpus_of(Machine.named("mig"))
ALL = (CUT, WHOLE, *INSTANCES)
MIG = SharingModes(Mode.MIG)


@pytest.fixture(name="sim")
def _sim(tmp_path: Path) -> Sim:
    return Sim.create(tmp_path, "mig")


def devices(gpus: Any = ALL, ways: SharingModes = MIG, **more: Any) -> dict[str, Any]:
    return {each["name"]: each for each in build_devices(gpus, InventoryPolicy(), ways=ways, **more).devices}


def left_out(gpus: Any = ALL, ways: SharingModes = MIG, **more: Any) -> dict[str, str]:
    return {each.uuid: each.why for each in build_devices(gpus, InventoryPolicy(), ways=ways, **more).left_out}


def test_instances_are_read_with_their_profile_memory_and_parent(sim: Sim) -> None:
    found = SimReader(sim).gpus()
    assert found == ALL
    assert [(each.profile, each.memory_mib, each.parent, each.index) for each in found[2:]] == [
        ("1g.10gb", 9984, CUT.uuid, 2), ("1g.10gb", 9984, CUT.uuid, 3), ("3g.40gb", 40448, CUT.uuid, 4),
    ]  # fmt: skip


def test_who_holds_what_is_asked_of_the_instance(sim: Sim) -> None:
    sim.register(1, INSTANCES[1].uuid, 4000)
    reader = SimReader(sim)
    assert [[row.used_mib for row in reader.sample(each.uuid).processes] for each in INSTANCES] == [[], [4000], []]
    assert reader.sample(INSTANCES[1].uuid).total_mib == 9984


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "1c.3g.20gb"), ("NVIDIA H100 MIG 1g.10gb+me", "1g.10gb+me"),
        ("NVIDIA H100 80GB HBM3", "2g.20gb"), ("an H100 of 2g.20gb kind", "2g.20gb"),
    ],
)  # fmt: skip
def test_a_profile_that_is_in_no_name_is_worked_out(
    sim: Sim, name: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Broken(sim)
    counts = SimpleNamespace(
        gpuInstanceSliceCount=2, computeInstanceSliceCount=2, memorySizeMB=19968, multiprocessorCount=32
    )
    monkeypatch.setattr(library, "nvmlDeviceGetName", lambda _: name)
    monkeypatch.setattr(library, "nvmlDeviceGetAttributes", lambda _: counts)
    assert {each.profile for each in NvmlReader(library).gpus() if each.parent} == {profile}


def test_an_instance_of_no_known_profile_is_left_out(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Broken(sim)
    monkeypatch.setattr(library, "nvmlDeviceGetName", lambda _: "?")
    sim.fail(Fault(call="nvmlDeviceGetAttributes_v2", error=3))
    found = NvmlReader(library).gpus()
    assert all("profile" in why for why in left_out(found).values())
    assert left_out(found).keys() == {each.uuid for each in INSTANCES}


def test_what_was_destroyed_is_gone_and_what_is_lost_is_remembered(sim: Sim) -> None:
    reader = SimReader(sim)
    before = reader.gpus()
    sim.fail(Fault(call="nvmlDeviceGetMaxMigDeviceCount", error=15, gpu=CUT.uuid))
    assert reader.gpus() == before
    sim.fail()
    sim.become(replace(sim.machine, instances=sim.machine.instances[1:]))
    reader.close()
    assert [each.uuid for each in merge_gpu_lists(before, reader.gpus())] == [
        each.uuid for each in ALL if each != INSTANCES[0]
    ]


def test_each_instance_is_a_device_for_one_user() -> None:
    found = devices()
    assert list(found) == [device_name(WHOLE), *map(device_name, INSTANCES), "status"]
    one = found[device_name(INSTANCES[0])]
    assert "allowMultipleAllocations" not in one
    assert one["capacity"] == {"memory": {"value": "9984Mi"}}
    strings = {name: value["string"] for name, value in one["attributes"].items() if "string" in value}
    assert {name: strings[name] for name in ("kind", "profile", "parentUUID", "uuid", "mode")} == {
        "kind": "mig", "profile": "1g.10gb", "parentUUID": CUT.uuid, "uuid": INSTANCES[0].uuid, "mode": "mig",
    }  # fmt: skip
    assert found[device_name(WHOLE)]["attributes"]["mode"] == {"string": "mps"}, "beside it, the other GPU is shared"
    assert left_out() == {}


@pytest.mark.parametrize("mode", [Mode.MPS, Mode.TIME_SLICING])
def test_in_another_mode_neither_an_instance_nor_its_parent_is_offered(mode: Mode) -> None:
    found = left_out(ways=SharingModes(mode))
    assert found.keys() == {CUT.uuid, *(each.uuid for each in INSTANCES)}
    assert all("gpu-share.io/mode=mig" in why for why in found.values())


def test_a_gpu_in_mig_mode_without_instances_is_reported() -> None:
    assert left_out([CUT, WHOLE]) == {CUT.uuid: "the GPU is in MIG mode but has no instance"}


def test_what_is_known_of_a_gpu_holds_for_its_instances() -> None:
    ill = devices(standing=GpuConditions(unhealthy={CUT.uuid: Reason.GPU_LOST}))
    assert [bool(each.get("taints")) for each in ill.values()] == [False, True, True, True, False]
    contended = left_out(standing=GpuConditions(contended={CUT.uuid: "a plugin", INSTANCES[1].uuid: "mixed strategy"}))
    assert contended[INSTANCES[0].uuid] == "Contended: a plugin"
    assert contended[INSTANCES[1].uuid] == "Contended: mixed strategy"


def test_an_instance_that_strangers_use_is_left_out() -> None:
    assert left_out(foreign_mib={INSTANCES[0].uuid: 512}) == {
        INSTANCES[0].uuid: "processes without a share use 512 MiB of the MIG instance"
    }


def test_an_instance_goes_with_the_gpu_that_an_operator_names() -> None:
    assert select_gpus(ALL, CUT.uuid) == (CUT, *INSTANCES)
    assert select_gpus(ALL, INSTANCES[1].uuid) == (INSTANCES[1],)
    assert select_gpus(ALL, "1") == (WHOLE,)


def claimed(gpu: Gpu) -> PrepareRequest:
    """A claim written by hand that was allocated all of a device."""
    made = by_hand("tts", {"gpu": "one"}, using("main", "main"))
    whole = {"request": "main", "driver": contract.DRIVER, "pool": NODE, "device": device_name(gpu)}
    return PrepareRequest(allocated("one", made, whole), made, namespace())


def test_its_user_has_all_of_it() -> None:
    found = compute_limits(NODE, claimed(INSTANCES[2]), {device_name(INSTANCES[2]): INSTANCES[2]})
    assert [(each.memory_mib, each.compute) for each in found.limits] == [(40448, None)]
    assert [(each.gpu, each.memory_mib, each.device_mib) for each in found.granted] == [
        (INSTANCES[2].uuid, 40448, 40448)
    ]


def test_a_share_that_consumed_nothing_is_refused_as_ever() -> None:
    with pytest.raises(PrepareError, match="reserves no memory"):
        compute_limits(NODE, claimed(WHOLE), {device_name(WHOLE): WHOLE})
