"""What a claim waits for before it is prepared: the MPS daemons of its GPUs, and that NVML reads them."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.dra import driver as driver_module
from enforcer.dra.capacity_check import check_capacity
from gpushare.errors import PrepareError
from gpushare.reasons import Reason
from tests.support.wiring import supervisor
from tests.unit.enforcer.dra.test_driver import refused
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU, OTHER_DEVICE


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_waits_for_the_mps_daemon_and_then_says_so_and_nothing_of_its_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hindrances = ["it is starting", "it is starting"]
    world.mps = supervisor(lambda _: hindrances.pop() if hindrances else None)
    world.restart()
    with monkeypatch.context() as patch:
        patch.setattr(driver_module, "CALL_PATIENCE", 60.0)
        assert world.driver.prepare(world.tenant("tts"))
    world.mps = supervisor(lambda _: "its log ends: client 4711 of somebody else")
    world.restart()
    error = refused(world, world.tenant("other"))
    assert error.reason is Reason.MPS_UNREACHABLE
    assert error.message == f"the MPS daemon of {GPU} is not ready, or has not stopped yet; the kubelet retries"
    assert len(world.store.prepared()) == 1


def test_a_claim_that_was_prepared_before_a_reboot_waits_for_its_mps_daemon_and_for_nvml(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    world.mps = supervisor(lambda _: "it is starting")
    world.restart()
    assert refused(world, ref).reason is Reason.MPS_UNREACHABLE
    world.mps = supervisor(lambda _: None)
    world.restart()
    world.reader.broken.add(GPU)
    assert refused(world, ref).reason is Reason.NVML_UNAVAILABLE
    monkeypatch.setattr(driver_module, "CALL_PATIENCE", 60.0)
    timer = threading.Timer(0.2, world.reader.broken.clear)
    timer.start()
    assert world.driver.prepare(ref)
    timer.join()


def test_while_nvml_cannot_read_a_gpu_no_claim_on_it_is_prepared_or_forgotten(world: World) -> None:
    old, new = world.tenant("old", "12Gi"), world.tenant("new", "8Gi")
    world.driver.prepare(old)
    world.reader.broken.add(GPU)
    world.driver.unprepare(old)
    error = refused(world, new)
    assert (error.reason, GPU in error.message) == (Reason.NVML_UNAVAILABLE, True)
    assert world.driver.prepare(world.tenant("beside", "12Gi", OTHER_DEVICE)), "another GPU can be read"
    world.driver.forget_finished()
    assert len(world.store.terminating()) == 1
    world.reader.broken.clear()
    world.driver.forget_finished()
    assert world.driver.prepare(new)


def test_while_blind_all_that_was_promised_to_an_ending_claim_counts(world: World) -> None:
    world.driver.prepare(old := world.tenant("old", "12Gi"))
    world.reader.broken.add(GPU)
    world.driver.unprepare(old)
    [ending] = world.store.terminating()
    new = replace(ending, uid="new", pod_uid="new")
    views = {view.gpu.uuid: view for view in world.setup.watch.sample()}
    with pytest.raises(PrepareError, match="12Gi of 14848Mi"):
        check_capacity(new, (), (ending,), views, {GPU: 14848})
