"""A container with shares of several GPUs: what it gets, by what it is judged, and where it is refused."""

import copy
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.cdi import variables
from enforcer.dra.driver import ClaimRef, PrepareCall
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.dra.resize import ResizeBounds, most_mib, resized
from enforcer.dra.resize_controller import ResizeController
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import PrepareError, ResizeRefused
from gpushare.kube_client import CORE_V1, path
from gpushare.reasons import Reason
from tests.support.quotas import of_containers
from tests.support.wiring import PreparedClaims, fixed_modes
from tests.unit.enforcer.dra.objects import (
    NAMESPACE,
    NODE,
    Object,
    allocated,
    by_hand,
    claim,
    container,
    gpu,
    made_uid,
    namespace,
    pod,
    using,
)
from tests.unit.enforcer.dra.test_allocation import DEVICES
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU
from tests.unit.enforcer.test_loop import CARD

BOTH = f"{DEVICE} {OTHER_DEVICE}"
TWO = {contract.MEMORY: "4Gi", contract.GPUS: "2"}
TOOLKIT = {GPU, OTHER_GPU}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.modes = fixed_modes(Mode.TIME_SLICING)
    world.restart()
    return world


def wide(world: World, name: str = "llm", annotations: dict[str, str] | None = None, devices: str = BOTH) -> ClaimRef:
    made = pod(name, {**TWO, **(annotations or {})})
    return world.add(made, claim(made, model=devices))


def prepared(made: Object, held: Object) -> PreparedClaim:
    return compute_limits(NODE, PrepareRequest(held, made, namespace()), DEVICES)


def edits(world: World, ref: ClaimRef, request: str = "model") -> dict[str, str]:
    (found,) = [each for each in world.document(ref)["devices"] if each["name"].endswith(f"-{request}")]
    return dict(each.split("=", 1) for each in found["containerEdits"]["env"])


def test_its_programs_see_both_gpus_and_what_they_may_hold_of_each(world: World) -> None:
    ref = wide(world)
    world.driver.prepare(ref)
    assert edits(world, ref) == {
        contract.NVIDIA_DRIVER_CAPABILITIES: contract.DRIVER_CAPABILITIES,
        contract.CUDA_VISIBLE_DEVICES: f"{GPU},{OTHER_GPU}",
        contract.NVIDIA_VISIBLE_DEVICES: f"{GPU},{OTHER_GPU}",
        contract.DEVICE_MEMORY_MIB: str(CARD),
        contract.USABLE_MIB: "3542",
        contract.MEMORY_FRACTION: "0.223160",
        contract.FREE_FRACTION: "0.223160",
        contract.MEMORY_MIB: "4096",
        contract.GPUS_VARIABLE: "2",
        "CUDF_PANDAS_RMM_MODE": "cuda",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def test_the_kubelet_is_notified_of_both_devices_and_gives_the_variables_once(world: World) -> None:
    spec = {"kind": contract.TOOLKIT_CDI_KIND, "devices": [{"name": each} for each in sorted(TOOLKIT)]}
    world.cdi.mkdir(exist_ok=True)
    (world.cdi / "nvidia.json").write_text(str(spec).replace("'", '"'))
    first, second, status = world.driver.prepare(wide(world))
    assert [each.device for each in (first, second)] == [DEVICE, OTHER_DEVICE]
    assert first.share_id != second.share_id
    toolkit = [f"{contract.TOOLKIT_CDI_KIND}={each}" for each in (GPU, OTHER_GPU)]
    assert list(first.cdi_ids[:2]) == toolkit, "ours is the last word"
    assert [each.partition("=")[0] for each in first.cdi_ids[2:]] == [contract.CDI_KIND]
    assert second.cdi_ids == ()
    assert len(status.cdi_ids) == 1


def test_it_is_evaluated_on_each_gpu_by_itself(world: World) -> None:
    ref = wide(world)
    world.driver.prepare(ref)
    quotas = of_containers(quotas_of_prepared(world.store.prepared(), [], [namespace()], ()))
    assert [(each.gpu, each.container, each.memory_mib, each.reserved_mib) for each in quotas] == [
        (GPU, "model", 4096, 4096),
        (OTHER_GPU, "model", 4096, 4096),
    ]
    assert world.store.modes() == dict.fromkeys((GPU, OTHER_GPU), Mode.TIME_SLICING)


def test_a_pod_that_joins_its_claim_may_hold_nothing_of_either(world: World) -> None:
    world.driver.prepare(wide(world))
    (kept,) = world.store.prepared()
    other = by_hand("late", {"gpu": kept.name}, using("main", "model"))
    quotas = quotas_of_prepared([kept], [other], [namespace()], ())
    late = {each.gpu: each.reserved_mib for each in quotas if each.pod == "late"}
    assert late == {GPU: 0, OTHER_GPU: 0}


@pytest.mark.parametrize("modes", [{GPU: Mode.MPS}, {OTHER_GPU: Mode.MPS}, dict.fromkeys((GPU, OTHER_GPU), Mode.MPS)])
def test_a_gpu_that_is_shared_through_mps_by_then_is_refused_with_the_reason(
    world: World, modes: dict[str, Mode]
) -> None:
    """The scheduler took them for shared by turns; a label may have changed since, or the claim was made by hand."""
    claims = PreparedClaims(modes)
    world.modes = SharingModeController(claims, Mode.TIME_SLICING, threading.Event(), labelled=False)
    world.restart()
    with pytest.raises(PrepareError, match="a process can use one MPS daemon, but each GPU has its own") as error:
        world.driver.prepare(wide(world))
    assert error.value.reason is Reason.CLAIM_UNSUPPORTED
    assert "time-slicing" in error.value.message
    assert world.store.prepared() == ()
    claims.prepared = {}
    world.driver.prepare(wide(world))


def test_there_has_to_be_room_on_both(world: World) -> None:
    world.driver.prepare(world.tenant("there", "13Gi", OTHER_DEVICE))
    with pytest.raises(PrepareError, match="GPU memory is not free yet") as error:
        world.driver.prepare(wide(world), PrepareCall(0.0))
    assert error.value.reason is Reason.GPU_MEMORY_IN_USE


def test_what_the_scheduler_promised_twice_only_the_first_gets(world: World) -> None:
    """Where the API server ends before it answers, the claim has its allocation and the scheduler forgets it."""
    first, second = world.tenant("first", "12Gi"), world.tenant("second", "8Gi")
    world.driver.prepare(first)
    with pytest.raises(
        PrepareError, match=r"Retrying\. If this persists, delete the pod so that it is rescheduled$"
    ) as error:
        world.driver.prepare(second, PrepareCall(0.0))
    assert error.value.reason is Reason.GPU_MEMORY_IN_USE
    assert [each.pod for each in world.store.prepared()] == ["first"]
    world.driver.unprepare(first)
    assert world.driver.prepare(second)


def test_what_is_kept_on_disk_is_read_back() -> None:
    made = pod("llm", TWO)
    found = prepared(made, claim(made, model=BOTH))
    assert decode(encode(found)) == found
    assert [each.gpu for each in found.of("model")] == [GPU, OTHER_GPU]
    assert (found.mib_on(GPU), found.mib_on(OTHER_GPU)) == (4096, 4096)


def test_another_container_may_be_on_one_of_them_and_both_are_counted_there() -> None:
    made = pod("llm", {**TWO, f"{contract.MEMORY_OF}aux": "2Gi"}, container("model"), container("aux"))
    held = claim(made, model=BOTH, aux=OTHER_DEVICE)
    found = prepared(made, held)
    assert (found.mib_on(GPU), found.mib_on(OTHER_GPU)) == (4096, 4096 + 2048)
    held["status"]["allocation"]["devices"]["results"][2]["consumedCapacity"]["memory"] = "1Gi"
    with pytest.raises(PrepareError, match="reserves 3Gi"):
        prepared(made, held)


def test_an_init_container_that_uses_the_same_request_states_its_own_limits() -> None:
    more = {f"{contract.MEMORY_OF}warm": "2Gi", f"{contract.GPUS_OF}warm": "2"}
    made = pod("llm", {**TWO, **more}, inits=(container("warm"),))
    found = prepared(made, claim(made, model=BOTH))
    assert {each.container: each.memory_mib for each in found.limits} == {"model": 4096, "warm": 2048}
    assert contract.MEMORY_MIB not in variables(found, found.of("model"), mps=False), "they differ"
    broken = copy.deepcopy(made)
    warm = next(each for each in broken["spec"]["initContainers"] if each["name"] == "warm")
    next(each for each in warm["env"] if each["name"] == contract.MPS_MEMORY_LIMIT)["value"] = "0=2048M"
    with pytest.raises(PrepareError, match=r"set CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M,1=2048M in its env"):
        prepared(broken, claim(made, model=BOTH))


def test_of_gpus_of_different_sizes_no_fraction_is_beyond_the_limit() -> None:
    made = pod("llm", TWO)
    found = prepared(made, claim(made, model=BOTH))
    small, large = found.of("model")
    found = replace(found, granted=(replace(small, device_mib=8192), replace(large, device_mib=81920)))
    said = variables(found, found.granted, mps=False)
    assert (said[contract.DEVICE_MEMORY_MIB], said[contract.MEMORY_FRACTION]) == ("81920", "0.043750")


def test_a_claim_by_hand_limits_to_the_least_it_consumed_of_one() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", "cards"))
    held = allocated("mine", made, gpu("cards", 3000, 40), gpu("cards", 2000, 30, device=OTHER_DEVICE))
    (limit,) = prepared(made, held).limits
    assert (limit.memory_mib, limit.compute) == (2000, 30)


def test_instances_and_the_status_device_are_not_held_together() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", "cards"))
    held = allocated("mine", made, gpu("cards", 3000), gpu("cards", 3000, device="status"))
    with pytest.raises(PrepareError, match="not whole GPUs; ask for one device in each request"):
        prepared(made, held)
    instance = DEVICES[OTHER_DEVICE]._replace(parent=GPU, profile="1g.10gb")
    held = allocated("mine", made, gpu("cards", 3000), gpu("cards", 3000, device=OTHER_DEVICE))
    with pytest.raises(PrepareError, match="not whole GPUs"):
        compute_limits(NODE, PrepareRequest(held, made, namespace()), {**DEVICES, OTHER_DEVICE: instance})


def test_another_quota_has_to_fit_on_both() -> None:
    annotations = {**TWO, f"{contract.MEMORY_OF}aux": "2Gi"}
    made = pod("llm", annotations, container("model"), container("aux"))
    found = prepared(made, claim(made, model=BOTH, aux=DEVICE))
    after = resized(found, made, "aux", 1024, ResizeBounds())
    assert most_mib(after, made, "model") == 4096, "there is room on the one, and none on the other"
    with pytest.raises(ResizeRefused, match="container model can have at most 4Gi"):
        resized(after, made, "model", 5120, ResizeBounds())
    assert resized(after, made, "model", 2048, ResizeBounds()).limits[0].memory_mib == 2048


@pytest.mark.parametrize("full", [GPU, OTHER_GPU])
def test_a_smaller_quota_is_lowered_against_the_gpu_of_which_it_holds_most(world: World, full: str) -> None:
    world.driver.prepare(wide(world))
    world.pods.pids[77] = made_uid("llm")
    world.reader.used[full] = {77: 3072}
    world.backends = dict.fromkeys((GPU, OTHER_GPU), "mps-v2")
    told, resizer = world.told, ResizeController(world.setup, world.driver)
    there = copy.deepcopy(world.api.objects[path(CORE_V1, "pods", "llm", NAMESPACE)])
    there["metadata"]["annotations"][f"{contract.RESIZE_OF}model"] = "2Gi;id=1"
    resizer.set_objects([there], [namespace()])
    resizer.run_once()
    assert "holds 3072 MiB" in told[0].note
    world.reader.broken.add(OTHER_GPU)
    there["metadata"]["annotations"][f"{contract.RESIZE_OF}model"] = "2Gi;id=2"
    resizer.set_objects([there], [namespace()])
    resizer.run_once()
    assert "cannot read the GPU memory" in told[1].note


def test_its_processes_keep_the_room_of_both_until_they_have_ended(world: World) -> None:
    ref = wide(world)
    world.driver.prepare(ref)
    world.pods.pids[77] = made_uid("llm")
    world.reader.used[OTHER_GPU] = {77: 4000}
    world.driver.unprepare(ref)
    assert [each.gpus for each in world.store.terminating()] == [(GPU, OTHER_GPU)]
    world.reader.used[OTHER_GPU] = {}
    world.driver.forget_finished()
    assert world.store.terminating() == ()
