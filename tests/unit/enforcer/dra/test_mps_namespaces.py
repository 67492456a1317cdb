"""Where shares have MPS namespaces of their own: which limits those get, and when containers are told of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.dra.cdi_files import NodeFiles
from enforcer.dra.mps_namespaces import MpsNamespaces, space_of
from enforcer.dra.prepared_claim import Granted, Limit, Prepared
from enforcer.mps.protocol_v3 import Space
from enforcer.quota.from_claims import terms_of
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import GpuShareError, MpsError, PrepareError
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU, OTHER_GPU

CLAIM = Prepared(
    uid="c1", namespace="n", name="c", pod="p", pod_uid="p1", terms=terms_of({}),
    granted=(
        Granted(request="model", pool="n", device="d", gpu=GPU, memory_mib=8192, compute=50, mode=Mode.MPS),
        Granted(request="watched", pool="n", device="e", gpu=OTHER_GPU, memory_mib=512, mode=Mode.TIME_SLICING),
    ),
    limits=(Limit(container="init", request="model", memory_mib=8192, compute=20),
            Limit(container="app", request="model", memory_mib=4096, compute=50)),
)  # fmt: skip


class Daemons:
    """A node's daemons, all of protocol 3."""

    def __init__(self) -> None:
        self.given: dict[tuple[str, str, str], Space] = {}
        self.failure: GpuShareError | None = None
        self.root = "/v3"

    def give(self, gpu: str, claim: str, request: str, space: Space) -> Path:
        if self.failure is not None:
            raise self.failure
        self.given[gpu, claim, request] = space
        return Path(f"{self.root}/{claim}/{request}")

    def drop(self, claim: str) -> None:
        self.given = {key: space for key, space in self.given.items() if key[1] != claim}


@pytest.fixture(name="daemons")
def _daemons() -> Daemons:
    return Daemons()


@pytest.fixture(name="world")
def _world(tmp_path: Path, daemons: Daemons) -> World:
    world = World(tmp_path)
    spaces = MpsNamespaces(daemons)  # type: ignore[arg-type]
    world.files = NodeFiles(world.cdi, world.run, lambda gpu: f"/mps/{gpu}/pipe", spaces)
    world.driver._parts = replace(world.driver._parts, files=world.files)
    return world


def mounted(world: World, uid: str) -> str:
    (ref,) = [each for each in world.store.prepared() if each.uid == uid]
    edits = world.document(ref)["devices"][0]["containerEdits"]  # type: ignore[arg-type]
    return str(next(each["hostPath"] for each in edits["mounts"] if each["containerPath"] == contract.PIPE_PATH))


def test_a_namespace_has_the_largest_limits_of_its_containers() -> None:
    assert space_of(CLAIM, CLAIM.granted[0]) == Space(memory_mib=8192, percentage=50)
    low = replace(CLAIM, low_priority=True)
    assert space_of(low, CLAIM.granted[0]).priority == 1


def test_a_container_without_a_cap_on_compute_opens_it_for_the_request() -> None:
    free = replace(CLAIM, limits=(*CLAIM.limits, Limit(container="x", request="model", memory_mib=1)))
    assert space_of(free, CLAIM.granted[0]).percentage == 100


def test_what_no_container_is_known_of_is_limited_by_what_was_consumed() -> None:
    assert space_of(replace(CLAIM, limits=()), CLAIM.granted[0]) == Space(memory_mib=8192, percentage=50)
    assert space_of(replace(CLAIM, limits=()), CLAIM.granted[1]) == Space(memory_mib=512)


def test_only_what_goes_through_mps_has_one(daemons: Daemons) -> None:
    found = MpsNamespaces(daemons).give(CLAIM)  # type: ignore[arg-type]
    assert found == {"model": "/v3/c1/model"}
    assert list(daemons.given) == [(GPU, "c1", "model")]


def test_a_prepared_claim_has_its_namespace_and_an_undone_one_has_none(world: World, daemons: Daemons) -> None:
    ref = world.tenant("a")
    world.driver.prepare(ref)
    assert mounted(world, ref.uid).startswith(f"/v3/{ref.uid}/")
    assert [space.memory_mib for space in daemons.given.values()] == [4096]
    world.driver.unprepare(ref)
    assert daemons.given == {}


def test_no_path_is_given_out_where_there_is_no_limit(world: World, daemons: Daemons) -> None:
    daemons.failure = MpsError("pid 7 of somebody", Reason.MPS_LIMIT_NOT_APPLIED)
    ref = world.tenant("a")
    with pytest.raises(PrepareError, match="makes no namespace") as caught:
        world.driver.prepare(ref)
    assert "somebody" not in caught.value.message
    assert not list(world.cdi.glob("*.json"))
    daemons.failure = None
    world.driver.prepare(ref)
    assert mounted(world, ref.uid).startswith("/v3/")


def test_a_daemon_that_comes_back_with_another_protocol_changes_what_containers_get(
    world: World, daemons: Daemons
) -> None:
    ref = world.tenant("a")
    world.driver.prepare(ref)
    daemons.root = "/v4"
    world.driver.restore()
    assert mounted(world, ref.uid).startswith("/v4/")
    daemons.failure = MpsError("away")
    world.driver.restore()
    assert mounted(world, ref.uid).startswith("/v4/")
