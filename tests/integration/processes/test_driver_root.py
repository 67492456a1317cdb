"""The enforcer as a node's pod runs it: no variable names its driver, only ``--driver-root``; tenants come over MPS."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.log import FOLDER, segments
from enforcer.audit.record import read
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import folder_of
from enforcer.nvml.driver_root import DriverRoot
from enforcer.quota.checkpoint import Checkpoint
from gpushare import contract
from tests.fakes.gpu import node
from tests.fakes.gpu.mps_binary import need_mps_control
from tests.fakes.gpu.need import need_library
from tests.integration.processes.containers import PROJECT, Container, Kubelet, wait_for

pytestmark = pytest.mark.node
TENANT = str(PROJECT / "tests/fakes/gpu/bin/gpu-share-tenant")


class Machine:
    """A simulated node and its enforcer."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        need_library()
        self.root, self.state, self.run, self._stack = root, root / "enforcer", root / "run", stack
        self.sim = node.lay_out(root, node.machine("n1", 2, 16384, "NVIDIA H100 80GB HBM3"))
        self.gpu = self.sim.machine.gpus[0].uuid
        self.kubelet = Kubelet()
        self.enforcer: subprocess.Popen[bytes] | None = None

    def start(self, driver: Path, *more: str) -> None:
        options = [
            "--node",
            "n1",
            "--no-cluster",
            "--allow-any-pid-namespace",
            "--poll-seconds",
            "0.1",
            "--termination-timeout",
            "5",
        ]
        places = ["--state", str(self.state), "--run", str(self.run), "--driver-root", str(driver)]
        with (self.root / "enforcer.log").open("wb") as log:
            self.enforcer = subprocess.Popen(
                [sys.executable, "-m", "enforcer.main", *options, *places, *more],
                cwd=PROJECT, env={"PATH": os.environ["PATH"]}, stderr=log,
            )  # fmt: skip
        self._stack.callback(self.end)

    def end(self) -> None:
        assert self.enforcer is not None
        self.enforcer.terminate()
        self.enforcer.wait(timeout=20)
        for note in (self.run / "mps").glob("*/daemon.json"):
            os.kill(json.loads(note.read_text())["pid"], 9)

    def serves_mps(self) -> bool:
        """Whether the GPU's daemon has been started and is asked for clients from now on; a pod would wait for it."""
        lines = [json.loads(line) for line in (self.root / "enforcer.log").read_text().splitlines()]
        return any("taken_over" in each and each["gpu"] == self.gpu for each in lines)

    def problems(self) -> list[str]:
        status = self.state / "status.json"
        return list(json.loads(status.read_text())["problems"]) if status.exists() else []

    def pipe(self) -> Path:
        return self.run / "mps" / folder_of(self.gpu) / "pipe"

    def hold(self, container: Container, *arguments: str, **more: str) -> dict[str, Any]:
        variables = {
            contract.CUDA_VISIBLE_DEVICES: self.gpu, contract.MPS_PIPE_DIRECTORY: str(self.pipe()),
            contract.MPS_MEMORY_LIMIT: "0=4096M",
        }  # fmt: skip
        process = container.spawn(TENANT, "hold", *arguments, env=variables | more)
        assert process.stdout is not None
        said: dict[str, Any] = json.loads(process.stdout.readline())
        return said

    def records(self, kind: str) -> list[dict[str, Any]]:
        lines = [line for file in segments(self.state / FOLDER) for line in file.read_bytes().splitlines(keepends=True)]
        return [record for record in map(read, lines) if record["kind"] == kind]


@contextmanager
def laid_out() -> Iterator[Machine]:
    """A machine of this test's own, cleared away in the end."""
    root = Path(tempfile.mkdtemp(prefix="node"))  # pytest's paths are too long for sockets
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        yield Machine(root, stack)


@pytest.fixture(name="machine")
def _machine() -> Iterator[Machine]:
    with laid_out() as made:
        yield made


def test_a_tenant_that_escapes_its_limit_is_ended_and_its_neighbour_is_not(machine: Machine) -> None:
    with machine.kubelet.container() as greedy, machine.kubelet.container() as modest:
        machine.state.mkdir(mode=0o700)
        Checkpoint(machine.state).write([greedy.quota(machine.gpu, 4096), modest.quota(machine.gpu, 4096)])
        machine.start(machine.root / "driver")
        wait_for(machine.serves_mps, 20)
        assert machine.hold(modest, "4Gi")["usedMiB"] == 4096
        assert machine.hold(greedy, "6Gi", "--over-limit", "--ignore-term")["limitMiB"] is None
        wait_for(lambda: bool(machine.records("OUTCOME")), 20)
        (outcome,) = machine.records("OUTCOME")
        assert outcome["targets"][0]["steps"] == "terminate_client,SIGTERM,SIGKILL"
        assert machine.sim.used_by_tenants(machine.gpu) == 4096
        assert machine.sim.compute_mode(machine.gpu) == 3


def test_nvidias_own_control_program_runs_from_a_root_like_the_operators(machine: Machine, tmp_path: Path) -> None:
    """As in ``/run/nvidia/driver``: a library behind a link, and a C library beside it that must not be taken."""
    root, libraries = tmp_path / "driver", tmp_path / "driver" / "usr/lib/x86_64-linux-gnu"
    (root / "usr/bin").mkdir(parents=True)
    libraries.mkdir(parents=True)
    shutil.copy(need_mps_control(), root / "usr/bin")
    shutil.copy(need_library() / "libnvidia-ml.so.1", libraries / "libnvidia-ml.so.570.86.15")
    (libraries / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.86.15")
    (libraries / "libc.so.6").write_text("of another age")
    driver = DriverRoot(root)
    daemon = MpsDaemon(
        machine.gpu, machine.run / "0", driver.program(), limit_mib=4096, environment=driver.environment(machine.run)
    )
    daemon.start()
    try:
        assert daemon.health() == {}
    finally:
        daemon.stop()


def test_a_driver_that_is_elsewhere_is_reported(machine: Machine, tmp_path: Path) -> None:
    machine.start(tmp_path)
    assert machine.enforcer is not None
    wait_for(lambda: any(f"no libnvidia-ml.so.1 below {tmp_path}" in each for each in machine.problems()), 20)
    assert any("--driver-root (chart value driverRoot)" in each for each in machine.problems())
    assert machine.enforcer.poll() is None, "it may come yet"
