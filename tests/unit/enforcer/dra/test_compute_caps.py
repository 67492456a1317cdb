"""What a container may use of a GPU's compute that reserved none of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.dra.compute_caps import FLOOR, with_caps
from enforcer.dra.driver import ClaimRef
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.quota.from_claims import Terms
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.kube_client import CORE_V1, path
from tests.unit.enforcer.dra.objects import NAMESPACE, allocated, by_hand, claim, container, gpu, namespace, pod, using
from tests.unit.enforcer.dra.world import CAPACITY, World
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU


def made(uid: str, compute: int = 0, gpu: str = GPU, mode: Mode = Mode.MPS) -> PreparedClaim:
    granted = AllocatedDevice(
        request="main", pool="n", device="d", gpu=gpu, memory_mib=1024, compute=compute, mode=mode
    )
    limit = ContainerLimit(container="main", request="main", memory_mib=1024, compute=compute or None)
    return PreparedClaim(
        uid=uid, namespace="n", name=uid, pod=uid, pod_uid=uid, granted=(granted,), limits=(limit,), terms=Terms()
    )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def tenant(world: World, name: str, compute: str = "", device: str = DEVICE, **env: str) -> ClaimRef:
    asked = {contract.MEMORY: "2Gi"} | ({contract.COMPUTE: compute} if compute else {})
    variables = [{"name": key, "value": value} for key, value in env.items()]
    user = pod(name, asked, container("model", **({"env": variables} if env else {})))
    return world.add(user, claim(user, device))


def percentage(world: World, ref: ClaimRef, request: str = "model") -> str | None:
    """Read the thread percentage in the CDI file; ``None`` without one."""
    (device,) = (each for each in world.document(ref)["devices"] if each["name"] == f"{ref.uid}-{request}")
    entries = dict(each.split("=", 1) for each in device["containerEdits"]["env"])
    return entries.get(contract.MPS_THREAD_PERCENTAGE)


@pytest.mark.parametrize(
    ("reserved", "cap"),
    [((), None), ((0,), None), ((25,), 75), ((25, 30), 45), ((95,), FLOOR), ((100,), FLOOR), ((80, 70), FLOOR)],
)
def test_a_container_without_a_percentage_gets_what_others_have_not_reserved(
    reserved: tuple[int, ...], cap: int | None
) -> None:
    others = [made(str(number), percent) for number, percent in enumerate(reserved)]
    assert with_caps(made("mine"), others).thread_percentage("main") == cap


def test_what_is_reserved_of_another_gpu_or_where_processes_take_turns_caps_nobody() -> None:
    assert with_caps(made("mine"), [made("other", 50, OTHER_GPU)]).caps == ()
    assert with_caps(made("mine", mode=Mode.TIME_SLICING), [made("other", 50, mode=Mode.TIME_SLICING)]).caps == ()


@given(st.lists(st.integers(1, 100), max_size=6), st.integers(1, 100))
def test_a_reservation_is_kept_whatever_others_have(reserved: list[int], mine: int) -> None:
    found = with_caps(made("mine", mine), [made(str(number), percent) for number, percent in enumerate(reserved)])
    assert (found.caps, found.thread_percentage("main")) == ((), mine)


def test_caps_stay_as_they_were_when_claims_come_and_go(world: World) -> None:
    first, reserved = tenant(world, "first"), tenant(world, "reserved", "40%")
    world.driver.prepare(first)
    world.driver.prepare(reserved)
    second = tenant(world, "second")
    world.driver.prepare(second)
    assert [percentage(world, each) for each in (first, reserved, second)] == [None, "40", "60"]
    world.forget(reserved, "reserved")
    world.driver.unprepare(reserved)
    world.restart()
    world.driver.prepare(second)
    assert [percentage(world, each) for each in (first, second)] == [None, "60"], "a running process keeps its own"
    third = tenant(world, "third")
    world.driver.prepare(third)
    assert percentage(world, third) is None


def test_what_its_own_pod_reserved_is_left_to_the_other_container(world: World) -> None:
    asked = {contract.MEMORY: "2Gi", contract.COMPUTE: "30%", contract.MEMORY_OF + "aux": "1Gi"}
    user = pod("both", asked, container("model"), container("aux"))
    ref = world.add(user, claim(user))
    world.driver.prepare(ref)
    assert [percentage(world, ref, each) for each in ("model", "aux")] == ["30", "70"]


def test_a_claim_written_by_hand_is_capped_like_any_other(world: World) -> None:
    world.driver.prepare(tenant(world, "reserved", "40%"))
    user = by_hand("job", {"gpu": "mine"}, using("main", "card"), inits=(using("first", "card"),))
    ref = world.add(user, allocated("mine", user, gpu("card", 3000)))
    world.driver.prepare(ref)
    assert percentage(world, ref, "card") == "60", "two containers of a request have one cap"
    other = by_hand("job2", {"gpu": "yours"}, using("main", "card"))
    elsewhere = world.add(other, allocated("yours", other, gpu("card", 3000, device=OTHER_DEVICE)))
    world.driver.prepare(elsewhere)
    assert percentage(world, elsewhere, "card") is None


@pytest.mark.parametrize(("own", "given"), [("10", "10"), ("90", "60"), ("0", "60"), ("x", "60"), ("100", "60")])
def test_a_tenants_own_percentage_only_lowers_the_cap(world: World, own: str, given: str) -> None:
    world.driver.prepare(tenant(world, "reserved", "40%"))
    ref = tenant(world, "mine", **{contract.MPS_THREAD_PERCENTAGE: own})
    world.driver.prepare(ref)
    assert percentage(world, ref) == given


def test_containers_of_one_request_that_differ_keep_their_own(world: World) -> None:
    """CDI writes the same variables into all of them."""
    world.driver.prepare(tenant(world, "reserved", "40%"))
    asked = {contract.MEMORY: "2Gi", contract.COMPUTE: "30%", contract.MEMORY_OF + "warm": "1Gi"}
    user = pod("both", asked, container("model"), inits=(container("warm"),))
    ref = world.add(user, claim(user))
    world.driver.prepare(ref)
    assert percentage(world, ref) is None


@pytest.mark.parametrize(
    ("annotation", "chart", "cap"),
    [
        ("memory", "none", "13"), ("", "memory", "13"), ("", "none", None), ("none", "memory", None),
        ("20%", "memory", None),  # what the webhook made a reservation of
    ],
)  # fmt: skip
def test_by_memory_a_cap_is_the_part_of_the_gpus_memory(
    world: World, annotation: str, chart: str, cap: str | None
) -> None:
    world.default_compute = chart
    world.restart()
    annotations = {contract.DEFAULT_COMPUTE: annotation} if annotation else {}
    world.api.objects[path(CORE_V1, "namespaces", NAMESPACE)] = namespace(annotations)
    ref = tenant(world, "tts")
    world.driver.prepare(ref)
    assert percentage(world, ref) == cap
    assert CAPACITY * 13 // 100 < 2048 <= CAPACITY * 14 // 100


def test_by_memory_no_cap_is_above_what_others_left(world: World) -> None:
    world.default_compute = "memory"
    world.restart()
    world.driver.prepare(tenant(world, "reserved", "92%"))
    ref, asking = tenant(world, "tts"), tenant(world, "asking", "5%")
    world.driver.prepare(ref)
    world.driver.prepare(asking)
    assert [percentage(world, each) for each in (ref, asking)] == ["8", "5"]
