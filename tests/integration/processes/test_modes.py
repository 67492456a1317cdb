"""Modes on a simulated machine with real processes: by turns instead of through MPS, and from the one to the other."""

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.audit.log import FOLDER
from enforcer.mps.desired_daemons import DaemonPlanner, DriverTools, PlannerInputs, ShareableGpus
from enforcer.mps.incidents import IncidentLog
from enforcer.mps.manager import MpsManager
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.nvml.driver_root import DriverRoot
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import InventoryPolicy
from tests.fakes.gpu import node, share
from tests.fakes.gpu.publish import gpus_of
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault
from tests.integration.processes.containers import wait_for
from tests.integration.processes.test_driver_root import Machine
from tests.support.wiring import PreparedClaims, Quotas, sampler
from tests.unit.enforcer.quota.test_sharing_mode import labelled

pytestmark = pytest.mark.node
EXCLUSIVE, DEFAULT = 3, 0


@pytest.fixture(name="machine")
def _machine() -> Iterator[Machine]:
    root = Path(tempfile.mkdtemp(prefix="node"))  # pytest's paths are too long for sockets
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        machine = Machine(root, stack)
        node.serve_devices(root, machine.sim)
        yield machine


def device(machine: Machine) -> dict[str, str]:
    """What the toolkit's device brings into a container."""
    return {share.DEVICE_FOLDER: str(machine.root / "devices" / machine.gpu)}


def test_by_turns_a_tenant_over_its_quota_is_ended_and_its_neighbour_is_not(machine: Machine) -> None:
    with machine.kubelet.container() as greedy, machine.kubelet.container() as modest:
        machine.state.mkdir(mode=0o700)
        Checkpoint(machine.state).write([greedy.quota(machine.gpu, 4096), modest.quota(machine.gpu, 4096)])
        assert machine.hold(modest, "4Gi", **device(machine))["usedMiB"] == 4096
        assert machine.hold(greedy, "6Gi", "--over-limit", **device(machine))["limitMiB"] is None
        machine.start(machine.root / "driver", "--mode", "time-slicing")
        wait_for((machine.state / FOLDER).is_dir, 20)
        wait_for(lambda: bool(machine.records("OUTCOME")), 20)
        (outcome,) = machine.records("OUTCOME")
        assert outcome["targets"][0]["steps"] == "SIGTERM", "there is no MPS to be asked first"
        assert machine.sim.used(machine.gpu) == 4096
        assert machine.sim.compute_mode(machine.gpu) == DEFAULT
        assert not machine.pipe().exists()


class Claims(PreparedClaims):
    """Claims on the GPUs that a test says."""

    def gpus(self) -> frozenset[str]:  # type: ignore[override] # answers for the test
        return frozenset(self.prepared or ())


@pytest.fixture(name="keeping")
def _keeping(machine: Machine) -> Iterator[tuple[MpsSupervisor, SharingModeController, dict[str, Mode]]]:
    """A keeper of real daemons, the node's modes, and those of claims."""
    held: dict[str, Mode] = {}
    claims = Claims(held)
    modes = SharingModeController(claims, Mode.MPS, threading.Event())
    modes.update_from_node(labelled())
    driver, gpus = DriverRoot(machine.root / "driver"), gpus_of(machine.sim.machine)[:1]
    tools = DriverTools(SimReader(machine.sim), driver, machine.run, None, IncidentLog())
    sources = PlannerInputs(
        watch=sampler(lambda: [GpuSnapshot(gpu=each) for each in gpus]), shared=ShareableGpus(None, "n1", None, modes),
        modes=modes, policy=InventoryPolicy(), claims=claims, checkpoint=Quotas(tuple), tools=tools,
        upgrade=DriverUpgrade(),
    )  # fmt: skip
    manager = MpsManager()
    yield MpsSupervisor(manager, DaemonPlanner(manager, machine.run, sources), fresh=0), modes, held
    manager.stop()


def test_a_gpu_changes_there_and_back_and_only_when_its_last_tenant_has_gone(machine: Machine, keeping: Any) -> None:
    keeper, modes, held = keeping
    plain = {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere", **device(machine)}
    with machine.kubelet.container() as first, machine.kubelet.container() as second:
        assert keeper.not_ready_reason(machine.gpu) is None
        held[machine.gpu] = Mode.MPS
        modes.update_from_node(labelled("time-slicing"))
        keeper.run_once()
        assert machine.sim.compute_mode(machine.gpu) == EXCLUSIVE
        assert machine.hold(first, "1Gi")["state"] == "holding", "MPS goes on serving its own"
        assert machine.hold(second, "1Gi", **plain)["error"] == 46, "and nobody else"
        held.clear()
        assert keeper.not_ready_reason(machine.gpu) is None
        assert machine.sim.compute_mode(machine.gpu) == DEFAULT
        assert machine.hold(second, "1Gi", **plain)["state"] == "holding"
    modes.update_from_node(labelled())
    assert keeper.not_ready_reason(machine.gpu) is None
    assert machine.sim.compute_mode(machine.gpu) == EXCLUSIVE


def test_a_compute_mode_that_could_not_be_put_back_is_put_back_later(machine: Machine, keeping: Any) -> None:
    keeper, modes, _ = keeping
    assert keeper.not_ready_reason(machine.gpu) is None
    machine.sim.fail(Fault(call="nvmlDeviceSetComputeMode", error=4))
    modes.update_from_node(labelled("time-slicing"))
    assert keeper.not_ready_reason(machine.gpu) == f"the previous MPS daemon of {machine.gpu} has not stopped yet"
    assert machine.sim.compute_mode(machine.gpu) == EXCLUSIVE
    machine.sim.fail()
    keeper.run_once()
    assert machine.sim.compute_mode(machine.gpu) == DEFAULT
    assert keeper.not_ready_reason(machine.gpu) is None
