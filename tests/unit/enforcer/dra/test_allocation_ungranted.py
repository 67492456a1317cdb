"""Containers that asked for nothing in a pod that has a share: whatever they hold counts against the pod's sum."""

from pathlib import Path

import pytest

from enforcer.dra.driver import ClaimRef
from gpushare import contract
from tests.unit.enforcer.dra.objects import Object, allocated, by_hand, claim, container, gpu, pod, using
from tests.unit.enforcer.dra.test_driver_beside import enforced, whole_pods
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU, OTHER_DEVICE, OTHER_GPU


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def tenant(world: World) -> tuple[Object, ClaimRef]:
    """A pod whose ``main`` has a share and whose ``helper`` asked for nothing."""
    made = pod("tts", {contract.MEMORY: "512Mi"}, container("main"), container("helper"), inits=(container("setup"),))
    ref = world.add(made, claim(made))
    world.driver.prepare(ref)
    return made, ref


def test_only_what_asked_for_a_share_has_a_quota_and_the_pod_has_the_sum(world: World) -> None:
    made, ref = tenant(world)
    assert [(each.container, each.memory_mib, each.ceiling_mib) for each in enforced(world, made)] == [
        ("main", 512, 768)
    ]
    assert whole_pods(world, made) == whole_pods(world) == {("tts", GPU): 512}
    world.driver.unprepare(ref)
    assert whole_pods(world, made) == {}


def test_the_claims_of_a_pod_add_up_on_each_gpu(world: World) -> None:
    claims = {"one": "first", "two": "second", "three": "third"}
    made = by_hand(
        "both", claims, using("main", None, entry="one"), using("helper", None, entry="two"),
        using("far", None, entry="three"),
    )  # fmt: skip
    refs = (
        ("first", gpu("gpu", 512)),
        ("second", gpu("gpu", 1024)),
        ("third", gpu("gpu", 2048, device=OTHER_DEVICE)),
    )
    for name, result in refs:
        world.driver.prepare(world.add(made, allocated(name, made, result)))
    found = {(each.container, each.gpu): each.memory_mib for each in enforced(world, made)}
    assert found == {("main", GPU): 512, ("helper", GPU): 1024, ("far", OTHER_GPU): 2048}
    assert whole_pods(world, made) == {("both", GPU): 1536, ("both", OTHER_GPU): 2048}


def test_a_pod_that_uses_anothers_claim_may_hold_nothing_on_any_of_its_gpus(world: World) -> None:
    first = by_hand("first", {"gpu": "shared"}, using("model", "one"))
    results = (gpu("one", 512), gpu("two", 1024, device=OTHER_DEVICE))
    world.driver.prepare(world.add(first, allocated("shared", first, *results)))
    second = by_hand("second", {"gpu": "shared"}, using("all", None), container("helper"))
    assert [each.container for each in enforced(world, first, second)] == ["model"]
    assert whole_pods(world, first, second) == {
        ("first", GPU): 512, ("first", OTHER_GPU): 1024, ("second", GPU): 0, ("second", OTHER_GPU): 0,
    }  # fmt: skip
