"""What a container may use of a GPU's compute that reserved none of it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.dra.compute_caps import FLOOR, stated, with_caps
from enforcer.dra.compute_notices import ComputeNotices
from enforcer.dra.driver import ClaimRef
from enforcer.dra.plugin import PreparedQuotas
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.dra.resize_controller import ResizeController
from enforcer.quota.from_claims import Terms
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.kube_client import CORE_V1, path
from gpushare.reasons import Reason
from tests.support.wiring import Messages
from tests.unit.enforcer.dra.objects import NAMESPACE, allocated, by_hand, claim, container, gpu, namespace, pod, using
from tests.unit.enforcer.dra.world import CAPACITY, World
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU

if TYPE_CHECKING:
    from enforcer.status.messages import UserMessage


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
    assert with_caps(made("mine"), [made("other", 50, OTHER_GPU)]).caps == {}
    assert with_caps(made("mine", mode=Mode.TIME_SLICING), [made("other", 50, mode=Mode.TIME_SLICING)]).caps == {}


@given(st.lists(st.integers(1, 100), max_size=6), st.integers(1, 100))
def test_a_reservation_is_kept_whatever_others_have(reserved: list[int], mine: int) -> None:
    found = with_caps(made("mine", mine), [made(str(number), percent) for number, percent in enumerate(reserved)])
    assert (found.caps, found.thread_percentage("main")) == ({}, mine)


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


@pytest.mark.parametrize("percents", [(10, 20), (10, None), (None,), (0,), (100,), ()])
def test_a_percentage_that_not_all_containers_of_a_request_state_is_not_theirs(
    percents: tuple[int | None, ...],
) -> None:
    assert stated(("main", percent) for percent in percents) == {}
    assert stated((("main", 10), ("main", 10), ("aux", 20))) == {"main": 10, "aux": 20}


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


class Told(ComputeNotices):
    """Keeps what it says."""

    def __init__(self) -> None:
        self.messages: list[UserMessage] = []
        super().__init__(Messages(self.messages))

    def after(self, *prepared: PreparedClaim) -> list[tuple[str, bool]]:
        """Return the pods that are told something by a check, and whether that is about their reservation."""
        self.messages.clear()
        self.check(prepared)
        return [(each.quota.pod, "at the same time" in each.note) for each in self.messages]


def test_a_tenant_is_told_once_that_others_may_use_what_it_reserved() -> None:
    told, early, late = Told(), made("early"), made("late", 25)
    assert told.after(early) == []
    assert told.after(early, late) == [("late", True)]
    assert "reserves 25% of the compute of" in told.messages[0].note
    assert "others may use 100% of it" in told.messages[0].note
    assert (told.messages[0].reason, told.messages[0].warning) == (Reason.COMPUTE_SHARED, False)
    assert told.after(early, late) == told.after(late) == told.after(early, late) == []


def test_a_reservation_that_nobody_can_use_needs_no_message() -> None:
    mine, other = made("mine", 25), made("other", 75)
    capped = with_caps(made("capped"), [mine])
    assert Told().after(mine, other) == []
    assert Told().after(mine, capped) == [("capped", False)]
    assert Told().after(mine, made("elsewhere", gpu=OTHER_GPU)) == []
    turns = made("turns", 25, mode=Mode.TIME_SLICING), made("other", mode=Mode.TIME_SLICING)
    assert Told().after(*turns) == []


def test_two_that_were_each_capped_at_what_was_left_are_more_than_what_was_left() -> None:
    mine = made("mine", 25)
    first = with_caps(made("first"), [mine])
    second = with_caps(made("second"), [mine, first])
    told = Told()
    assert told.after(mine, first) == [("first", False)]
    assert told.after(mine, first, second) == [("mine", True), ("second", False)]
    assert "may use 75% of its SMs" in told.messages[1].note


def test_a_claim_that_is_prepared_again_is_told_again() -> None:
    told, early, late = Told(), made("early"), made("late", 25)
    told.after(early, late)
    told.after(early)
    assert told.after(early, late) == [("late", True)]


def test_the_driver_tells_a_pod_and_its_sidecar(world: World) -> None:
    for name, compute in (("early", ""), ("late", "40%")):
        world.driver.prepare(tenant(world, name, compute))
    rule = PreparedQuotas(world.setup, ResizeController(world.setup, world.driver))
    rule.quotas({"pods": (), "namespaces": ()})
    assert [(each.quota.pod, each.reason) for each in world.told] == [("late", Reason.COMPUTE_SHARED)]
