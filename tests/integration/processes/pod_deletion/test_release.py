"""Pods that are deleted: their clients are released by the stand-in's daemon before they are killed, in that order."""

import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.manager import MpsManager
from enforcer.pod_deletion.client_release import ReleaserDependencies, release_in_time
from enforcer.pod_deletion.terminating_pods import TerminatingPods
from enforcer.quota.informer import AllocatedClaims, QuotaInformer
from enforcer.quota.types import Quota
from enforcer.runtime.manager import Manager
from enforcer.status.metrics import Metrics
from gpushare.errors import MpsError
from tests.fakes.gpu import mps_control
from tests.fakes.gpu.state import Sim
from tests.integration.processes.containers import Container, Kubelet, alive, wait_for
from tests.support.wiring import Quotas

pytestmark = pytest.mark.node


class Machine:
    """Two GPUs with a daemon each, containers, and what releases their clients."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.sim = Sim.create(folder / "sim", "pair-16g")
        program = mps_control.install(folder, self.sim.folder)
        self.gpus = [gpu.uuid for gpu in self.sim.machine.gpus]
        daemons = {
            gpu: MpsDaemon(gpu, folder / str(number), program, limit_mib=14848) for number, gpu in enumerate(self.gpus)
        }
        for daemon in daemons.values():
            stack.callback(_stop, daemon)
        manager = MpsManager(daemons)
        assert manager.start() == {}
        self.pipes = [daemon.pipe for daemon in daemons.values()]
        self.logs = [daemon.log / "control.log" for daemon in daemons.values()]
        self.quotas = list[Quota]()
        self._kubelet, self._stack = Kubelet(), stack
        parts, departures = Manager(), TerminatingPods()
        self.books = QuotaInformer(AllocatedClaims("gpu-7"), threading.Event(), [departures])
        tools = ReleaserDependencies(
            departures=departures, checkpoint=Quotas(lambda: self.quotas), processes=HostProcesses(CgroupAttributor()),
            metrics=Metrics(), stopped=parts.stopped,
        )  # fmt: skip
        release_in_time(parts, manager, tools)
        parts.start()
        stack.callback(parts.stop)
        self.books.replace("pods", [])

    def pod(self, *options: str, gpu: int = 0) -> tuple[Container, subprocess.Popen[str]]:
        container = self._stack.enter_context(self._kubelet.container())
        uuid = self.gpus[gpu]
        process = container.tenant(self.sim, "--mib", "300", "--kind", "mps", "--gpu", uuid, "--ignore-term", *options)
        self.quotas = [*self.quotas, container.quota(uuid, 512)]
        self.books.on_event("pods", "ADDED", self._object(container))
        return container, process

    def delete(self, container: Container, grace: int) -> float:
        """Delete it as the API server shows it; the kubelet's part is the test's. Returns when it will be killed."""
        self.books.on_event("pods", "MODIFIED", self._object(container, grace))
        return time.monotonic() + grace

    def log(self, gpu: int = 0) -> str:
        return self.logs[gpu].read_text()

    @staticmethod
    def _object(container: Container, grace: int | None = None) -> dict[str, Any]:
        metadata: dict[str, Any] = {"uid": container.pod_uid}
        if grace is not None:
            end = datetime.now(UTC) + timedelta(seconds=grace)
            metadata |= {"deletionTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "deletionGracePeriodSeconds": grace}
        return {"metadata": metadata}


def _stop(daemon: MpsDaemon) -> None:
    with suppress(MpsError):
        daemon.stop()


@pytest.fixture(name="machine")
def _machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    # Half of the grace and not its last two seconds: those can be short on a machine that is busy.
    monkeypatch.setattr("enforcer.pod_deletion.deadlines.LEAD", 20.0)
    # Not pytest's own folder: its paths are too long for sockets.
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    with ExitStack() as stack:
        yield Machine(folder, stack)
    shutil.rmtree(folder)


def released(process: subprocess.Popen[str]) -> Callable[[], bool]:
    """Whether a tenant has been told that its context is gone: a pipe that has something to read."""
    assert process.stdout is not None
    line: list[str] = []
    threading.Thread(target=lambda: line.append(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return lambda: bool(line) and "client terminated" in line[0]


def test_a_client_that_ignores_the_end_is_released_before_it_is_killed(machine: Machine) -> None:
    leaving, process = machine.pod()
    _, neighbour = machine.pod()
    _, elsewhere = machine.pod(gpu=1)
    told = released(process)
    end = machine.delete(leaving, 12)
    wait_for(told, 20)
    assert end - 7 < time.monotonic() < end, "in the second half of its grace, and in time"
    assert alive(process), "to be killed by the kubelet"
    process.send_signal(signal.SIGKILL)
    # It is told before its daemon's log says so.
    wait_for(lambda: "terminate_client" in machine.log(), 10)
    assert sorted(machine.sim.tenants()) == sorted([neighbour.pid, elsewhere.pid])
    assert "terminate_client" not in machine.log(1)


def test_a_program_that_ends_in_time_is_left_to_it(machine: Machine) -> None:
    (brief, process), (other, stubborn) = machine.pod("--seconds", "0.5"), machine.pod()
    told = released(stubborn)
    machine.delete(brief, 12)
    machine.delete(other, 12)
    process.wait(20)
    wait_for(told, 20)
    wait_for(lambda: f" {stubborn.pid}\n" in machine.log(), 10)
    assert f" {process.pid}\n" not in machine.log()


def test_many_that_are_deleted_at_once_are_all_released_in_time(machine: Machine) -> None:
    pods = [machine.pod(gpu=number % 2) for number in range(12)]
    told = [released(process) for _, process in pods]
    end = max(machine.delete(container, 24) for container, _ in pods)
    wait_for(lambda: all(each() for each in told), 40)
    assert time.monotonic() < end
    wait_for(lambda: machine.log().count("terminate_client") == 6, 10)


def test_a_daemon_that_is_blocked_keeps_no_other_gpus_pods_waiting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever stands in the door stays there for as long as this looks.
    monkeypatch.setattr("enforcer.mps.watchdog.PATIENCE", 60.0)
    (here, first), (there, second) = machine.pod(gpu=0), machine.pod(gpu=1)
    told = released(second)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(machine.pipes[0] / "control"))
        end = machine.delete(here, 8)
        machine.delete(there, 8)
        wait_for(told, 10)
        assert time.monotonic() < end
        assert first.pid in machine.sim.processes()
    wait_for(lambda: first.pid not in machine.sim.processes(), 15)


def test_without_grace_it_is_a_matter_of_moments(machine: Machine) -> None:
    container, process = machine.pod()
    told = released(process)
    machine.delete(container, 0)
    wait_for(told, 10)
