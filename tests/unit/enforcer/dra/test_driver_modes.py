"""Which way a claim is prepared for: that of its GPU at this moment, and it stays."""

import threading
from pathlib import Path

import pytest

from enforcer.dra.driver import ClaimRef
from enforcer.quota.prepared_claims import NoClaims
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import PrepareError
from gpushare.reasons import Reason
from tests.support.wiring import supervisor
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU, OTHER_DEVICE, OTHER_GPU
from tests.unit.enforcer.quota.test_sharing_mode import labelled


@pytest.fixture
def labelling(tmp_path: Path) -> World:
    world = World(tmp_path)

    class Claims(NoClaims):
        def modes(self) -> dict[str, Mode]:
            return world.store.modes() or {}

    world.modes = SharingModeController(Claims(), Mode.MPS, threading.Event())
    world.restart()
    world.modes.update_from_node(labelled())
    return world


def environment(world: World, ref: ClaimRef) -> dict[str, str]:
    edits = world.document(ref)["devices"][0]["containerEdits"]
    return dict(each.split("=", 1) for each in edits["env"])


def test_a_claim_is_prepared_for_its_gpu_as_it_is_shared_then(labelling: World) -> None:
    world = labelling
    first = world.tenant("first")
    world.driver.prepare(first)
    world.modes.update_from_node(labelled("time-slicing"))
    before = world.document(first)
    world.driver.prepare(first)
    assert world.document(first) == before, "whoever is there stays as it was"
    late = world.tenant("late")
    world.driver.prepare(late)
    assert contract.MPS_PIPE_DIRECTORY in environment(world, late), "it was placed beside the first"
    other = world.tenant("other", device=OTHER_DEVICE)
    world.driver.prepare(other)
    assert not [name for name in environment(world, other) if "MPS" in name]
    assert "mounts" not in world.document(other)["devices"][0]["containerEdits"]
    world.driver.unprepare(first)
    world.driver.unprepare(late)
    assert world.modes.of(GPU) is Mode.TIME_SLICING


def test_a_claim_is_not_prepared_while_nobody_knows_how_its_gpu_is_shared(labelling: World) -> None:
    world = labelling
    there = world.tenant("there")
    world.driver.prepare(there)
    world.modes.update_from_node(labelled("time-sliced"))
    world.driver.prepare(there)
    with pytest.raises(PrepareError, match=contract.NODE_MODE) as error:
        world.driver.prepare(world.tenant("new", device=OTHER_DEVICE))
    assert error.value.reason is Reason.MODE_UNKNOWN
    assert len(world.store.prepared()) == 1


def test_a_label_that_changes_in_mid_prepare_changes_nothing_for_that_claim(labelling: World) -> None:
    world = labelling

    def changing(gpu: str) -> None:
        world.modes.update_from_node(labelled("time-slicing"))
        assert world.modes.of(gpu) is Mode.MPS

    world.mps = supervisor(changing)
    world.restart()
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    assert contract.MPS_PIPE_DIRECTORY in environment(world, ref)
    assert (world.store.modes(), world.modes.of(GPU)) == ({GPU: Mode.MPS}, Mode.MPS)
    assert world.modes.of(OTHER_GPU) is Mode.TIME_SLICING
