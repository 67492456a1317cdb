"""One machine for the enforcer's tests: simulated GPUs, containers, and the enforcer as a process of its own."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, Any

from enforcer.audit.log import segments
from enforcer.audit.record import read, verify
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Quota
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim
from tests.integration.processes.containers import PROJECT, Container, Kubelet, wait_for

POLL = 0.2


class Node:
    """One machine: simulated GPUs, a state directory, containers, and an enforcer process."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.library = need_library()
        self.kubelet = Kubelet()
        self.sim = Sim.create(folder / "sim", "single-16g")
        self.gpu = self.sim.machine.gpus[0].uuid
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        self._folder, self._stack = folder, stack
        self.enforcer: subprocess.Popen[bytes] | None = None

    def container(self) -> Container:
        return self._stack.enter_context(self.kubelet.container())

    def allow(self, *quotas: Quota) -> None:
        Checkpoint(self.state).write(quotas)

    def start(self, *options: str, run: Path | None = None, path: Path | None = None) -> None:
        """Start it and wait for its first look; ``run`` and ``path``: with MPS, its directory and its program's."""
        with (self._folder / "enforcer.log").open("ab") as log:
            self.launch(*options, stderr=log, run=run, path=path)
        wait_for(lambda: self.status() != {} and self.running(), 20)

    def launch(self, *options: str, stderr: IO[Any], run: Path | None = None, path: Path | None = None) -> None:
        """Start it without waiting for anything."""
        mps = ["--no-mps"] if run is None else ["--run", str(run)]
        environment = {**os.environ, **self.sim.environment(self.library)}
        if path is not None:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        self.enforcer = subprocess.Popen(
            [sys.executable, "-m", "enforcer.main", "--node", "gpu-7", "--state", str(self.state), "--no-cluster",
             *mps, "--no-publish", "--poll-seconds", str(POLL),
             "--termination-timeout", "0.5", "--allow-any-pid-namespace",
             *options],
            cwd=PROJECT, env=environment, stderr=stderr,
        )  # fmt: skip

    def running(self) -> bool:
        assert self.enforcer is not None
        assert self.enforcer.poll() is None, self.log()
        return bool(self.status()["time"])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.enforcer is not None
        self.enforcer.send_signal(number)
        code = self.enforcer.wait(20)
        (self.state / "status.json").unlink(missing_ok=True)
        return code

    def end(self) -> None:
        if self.enforcer is not None and self.enforcer.poll() is None:
            self.enforcer.kill()
            self.enforcer.wait(10)

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.state / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def state_of(self, container: Container) -> str:
        rows = [row for row in self.status()["containers"] if row["containerId"] == container.container_id]
        return str(rows[0]["state"]) if rows else ""

    def looks(self, count: int) -> None:
        """Let the enforcer look so many times more."""
        for _ in range(count):
            before = self.status()["time"]
            wait_for(lambda before=before: self.status()["time"] != before, 10)  # type: ignore[misc] # bound now

    def log(self) -> str:
        return (self._folder / "enforcer.log").read_text()

    def lines(self) -> list[bytes]:
        return list(
            chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(self.state / "audit"))
        )

    def records(self, kind: str = "") -> list[dict[str, Any]]:
        return [record for record in map(read, self.lines()) if kind in {"", record["kind"]}]

    def verified(self) -> bool:
        """The chain holds, and each INTENT has its one answer, which is written a moment after the process is gone."""
        wait_for(lambda: len(self._answered()) >= len(self.records("INTENT")), 10)
        return verify(self.lines()).ok and self._answered() == [record["seq"] for record in self.records("INTENT")]

    def _answered(self) -> list[int]:
        return sorted(record["intent"] for record in self.records() if record["kind"] in {"ABORTED", "OUTCOME"})
