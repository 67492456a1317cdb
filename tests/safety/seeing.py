"""A container over its quota, one look away from its end, watched through the real nvidia-ml-py in its own process."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.detector import evaluate
from enforcer.detection.nvml_outage import OutageChange, Outages, update
from enforcer.detection.types import Decision, DetectorConfig, DetectorState
from enforcer.nvml.client import NvmlClient, NvmlTimeouts
from enforcer.nvml.driver_root import HERE
from enforcer.nvml.types import GpuProcess
from enforcer.nvml.worker_handle import command
from gpushare.errors import NvmlError
from tests.fakes.gpu.state import Sim
from tests.support.wiring import Attribution
from tests.unit.enforcer.made import CONTAINER, POD, quota

STEP: Final = 2.0
"""Seconds of the judge's clock between looks: six blind ones are more than operators wait for."""
PATIENT: Final = NvmlTimeouts(deadline=200.0, patience=400.0, restart=0.01, most_restart=0.02)
"""For a busy machine: what is not scripted to hang has all the time it needs, a late answer 4 s."""
HELD: Final = 5000
RULES: Final = DetectorConfig(max_gap=1e6)
"""However long it was blind, the next sample would do: nothing but blindness protects the victim."""


class Counting(NvmlClient):
    """Notes which questions were not answered, and why."""

    failures: list[tuple[str, NvmlError]]

    def _ask(self, what: str, *arguments: Any) -> Any:
        try:
            return super()._ask(what, *arguments)
        except NvmlError as error:
            self.failures.append((what, error))
            raise


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw: processes, or ``None`` when blind; whether the judge would kill; what changed in sight."""

    seen: tuple[GpuProcess, ...] | None
    kills: bool
    changes: tuple[OutageChange, ...]


class Bed:
    """One GPU, a victim that holds 5000 of its 4096 MiB, and an enforcer's eyes and judgement."""

    def __init__(self, sim: Sim, reader: Counting, victim: int) -> None:
        self.sim, self.reader, self.victim = sim, reader, victim
        self.gpu = sim.machine.gpus[0].uuid
        self.truth = (GpuProcess(victim, HELD),)
        self.watch = UsageSampler(reader, Attribution(self.identify))
        self.now, self._due = 1000.0, 0.0
        self.sight: Outages = {}
        self._quotas = (quota(gpu=self.gpu, grace_seconds=0.0),)
        self._primed = self.state = DetectorState()

    def identify(self, pid: int) -> Identity | None:
        """Whose a process is."""
        return Identity(pid=pid, start=1, owner=ContainerRef(POD, CONTAINER))

    def begin(self) -> None:
        """All is well, and the next sample ends the victim."""
        self.sim.fail()
        self.reader.failures.clear()
        self.state, self.sight = self._primed, {}
        if self._primed.cases:
            self.now = self._due
            return None
        while True:
            before = self.state, self.now
            look = self.look()
            assert look.seen == self.truth
            if look.kills:
                (self._primed, self._due) = before
                return self.begin()

    def look(self) -> Look:
        """One poll: read, attribute, judge."""
        self.now += STEP
        try:
            views = self.watch.sample()
            problems = {view.gpu.uuid: view.problem for view in views if view.problem is not None}
        except NvmlError as error:
            views, problems = (), {"all": error}
        self.sight, changes = update(self.sight, problems, self.now)
        self.state, said = evaluate(self.state, self._quotas, {v.gpu.uuid: v.reading for v in views}, self.now, RULES)
        return Look(_seen(views), any(verdict.decision is Decision.KILL for verdict in said), changes)


def _seen(views: tuple[GpuSnapshot, ...]) -> tuple[GpuProcess, ...] | None:
    [sample] = [view.sample for view in views] or [None]
    return None if sample is None else sample.processes


@contextmanager
def bed(folder: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    """Set one up, on a library of its own."""
    sim = Sim.create(folder / "sim", "single-16g")
    for name, value in sim.environment(library).items():
        monkeypatch.setenv(name, value)
    reader = Counting(command(HERE), PATIENT)
    reader.failures = []
    with subprocess.Popen(["sleep", "3600"]) as victim:
        try:
            sim.register(victim.pid, sim.machine.gpus[0].uuid, HELD, "mps")
            made = Bed(sim, reader, victim.pid)
            made.begin()
            yield made
        finally:
            reader.close()
            victim.kill()


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for what has to come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)
