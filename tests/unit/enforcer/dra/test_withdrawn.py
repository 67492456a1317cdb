"""What the scheduler takes for free too early, without any policy: claims that are gone, claims that were refused."""

import os
from pathlib import Path

import pytest

from enforcer.dra.driver import PrepareCall
from enforcer.dra.withdrawn import WithdrawnClaims
from gpushare import contract
from gpushare.errors import PermissionRefused, PrepareError
from gpushare.kube_client import CORE_V1, path
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.objects import NAMESPACE, namespace
from tests.unit.enforcer.dra.world import CAPACITY, World
from tests.unit.enforcer.made import GPU


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("how", ["deleted", "another", "deallocated", "allocated again", "allocated elsewhere"])
def test_a_claim_that_is_withdrawn_under_its_pod_is_reserved_until_it_is_undone(world: World, how: str) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    watch = WithdrawnClaims(world.setup.cluster, world.store, world.driver.crowded)
    watch.run_once()
    assert watch.mib() == {}
    if how == "deleted":
        del world.api.objects[world.where(ref.name)]
    elif how == "another":
        world.api.objects[world.where(ref.name)]["metadata"]["uid"] = "another"
    elif how == "deallocated":
        del world.api.objects[world.where(ref.name)]["status"]["allocation"]
    else:
        for each in world.api.objects[world.where(ref.name)]["status"]["allocation"]["devices"]["results"]:
            each["shareID" if how == "allocated again" else "pool"] = "another"
    watch.run_once()
    assert watch.mib() == {GPU: 4096}
    world.api.down = True
    watch.run_once()
    assert watch.mib() == {GPU: 4096}, "what was known counts"
    world.driver.unprepare(ref)
    assert watch.mib() == {}


def test_an_api_server_that_does_not_answer_withdraws_nothing(world: World) -> None:
    world.driver.prepare(world.tenant("tts"))
    watch = WithdrawnClaims(world.setup.cluster, world.store, world.driver.crowded)
    world.api.down = True
    watch.run_once()
    assert watch.mib() == {}


def test_where_a_neighbour_does_not_fit_the_claims_are_looked_at_at_once(world: World) -> None:
    first = world.tenant("first", f"{CAPACITY}Mi")
    world.driver.prepare(first)
    world.forget(first, "first")
    assert not world.driver.crowded.is_set()
    with pytest.raises(PrepareError) as caught:
        world.driver.prepare(world.tenant("second"), PrepareCall(patience=0.6))
    assert caught.value.reason is Reason.GPU_MEMORY_IN_USE
    assert world.driver.crowded.is_set()


EVICTION = path(CORE_V1, "pods", "tts", NAMESPACE) + "/eviction"


@pytest.mark.parametrize("runs", [False, True])
def test_a_pod_whose_claim_is_refused_gives_up_what_is_reserved_for_it(world: World, *, runs: bool) -> None:
    """One that runs lost its claim's record, and its namespace opted out meanwhile."""
    world.api.objects[path(CORE_V1, "namespaces", NAMESPACE)] = namespace({contract.MAX_MEMORY: "2Gi"})
    ref = world.tenant("tts")
    pod = world.api.objects[path(CORE_V1, "pods", "tts", NAMESPACE)]
    world.pods.pids = {os.getpid(): pod["metadata"]["uid"]} if runs else {}
    with pytest.raises(PermissionRefused):
        world.driver.prepare(ref)
    world.setup.writer.run_once()
    evicted = [body for where, body in world.api.created if where == EVICTION]
    assert [each["deleteOptions"]["preconditions"]["uid"] for each in evicted] == (
        [] if runs else [pod["metadata"]["uid"]]
    )
