"""Containers that asked for nothing in a pod that has a share: whatever they hold was never reserved."""

from pathlib import Path

import pytest

from enforcer.dra.driver import ClaimRef
from enforcer.quota.types import Quota
from gpushare import contract
from tests.unit.enforcer.dra.objects import Object, allocated, by_hand, claim, container, gpu, pod, using
from tests.unit.enforcer.dra.test_driver_beside import enforced
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU, OTHER_DEVICE, OTHER_GPU

MAIN, HELPER, DEBUG, SETUP = (letter * 64 for letter in "abde")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def statuses(**ids: str) -> list[Object]:
    return [{"name": name, "containerID": f"containerd://{found}"} for name, found in ids.items()]


def tenant(world: World) -> tuple[Object, ClaimRef]:
    """A pod whose ``main`` has a share and whose ``helper`` asked for nothing, with all kinds of containers running."""
    made = pod("tts", {contract.MEMORY: "512Mi"}, container("main"), container("helper"), inits=(container("setup"),))
    ref = world.add(made, claim(made))
    world.driver.prepare(ref)
    return made, ref


def running(made: Object) -> Object:
    made["status"] |= {
        "initContainerStatuses": statuses(setup=SETUP),
        "containerStatuses": statuses(main=MAIN, helper=HELPER),
        "ephemeralContainerStatuses": statuses(debug=DEBUG),
    }
    return made


def amounts(found: list[Quota]) -> dict[str, tuple[str | None, str, int, int]]:
    return {each.container: (each.container_id, each.gpu, each.memory_mib, each.ceiling_mib) for each in found}


def test_containers_that_asked_for_nothing_may_hold_nothing(world: World) -> None:
    made, _ = tenant(world)
    assert amounts(enforced(world, running(made))) == {
        "main": (MAIN, GPU, 512, 768),
        "helper": (HELPER, GPU, 0, 0),
        "debug": (DEBUG, GPU, 0, 0),
        "setup": (SETUP, GPU, 0, 0),
    }


def test_one_that_has_not_started_is_not_evaluated_and_one_made_again_is(world: World) -> None:
    made, _ = tenant(world)
    assert list(amounts(enforced(world, made))) == ["main"]
    first = enforced(world, running(made))
    made["status"]["containerStatuses"] = statuses(main=MAIN, helper="f" * 64)
    assert amounts(enforced(world, made, before=first))["helper"][0] == "f" * 64


def test_they_are_evaluated_while_their_pod_is_gone_from_the_api_server_until_its_claim_is_undone(world: World) -> None:
    made, ref = tenant(world)
    before = enforced(world, running(made))
    assert enforced(world, before=before) == before
    world.driver.unprepare(ref)
    assert enforced(world, running(made), before=before) == []


def test_a_tolerance_of_the_namespace_gives_them_nothing_and_its_other_terms_hold(world: World) -> None:
    made, _ = tenant(world)
    policy = {contract.TOLERANCE: "1Gi", contract.ON_EXCEED: "warn", contract.GRACE_PERIOD: "9s"}
    helper = next(each for each in enforced(world, running(made), policy=policy) if each.container == "helper")
    assert (helper.ceiling_mib, helper.on_exceed, helper.grace_seconds) == (0, "warn", 9.0)


def test_what_another_claim_of_the_pod_gives_on_that_gpu_stays(world: World) -> None:
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
    made["status"]["containerStatuses"] = statuses(main=MAIN, helper=HELPER, far=DEBUG)
    found = {(each.container, each.gpu): each.memory_mib for each in enforced(world, made)}
    assert found == {
        ("main", GPU): 512, ("helper", GPU): 1024, ("far", GPU): 0,
        ("main", OTHER_GPU): 0, ("helper", OTHER_GPU): 0, ("far", OTHER_GPU): 2048,
    }  # fmt: skip
    assert len(enforced(world, made)) == len(found)


def test_in_a_pod_that_uses_anothers_claim_nobody_may_hold_anything(world: World) -> None:
    first = by_hand("first", {"gpu": "shared"}, using("model", "one"))
    results = (gpu("one", 512), gpu("two", 1024, device=OTHER_DEVICE))
    world.driver.prepare(world.add(first, allocated("shared", first, *results)))
    second = by_hand("second", {"gpu": "shared"}, using("all", None), container("helper"))
    second["status"]["containerStatuses"] = statuses(all=MAIN, helper=HELPER)
    found = {(each.container, each.gpu): each.memory_mib for each in enforced(world, first, second)}
    assert found == {
        ("model", GPU): 512, ("all", GPU): 0, ("all", OTHER_GPU): 0,
        ("helper", GPU): 0, ("helper", OTHER_GPU): 0,
    }  # fmt: skip
