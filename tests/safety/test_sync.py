"""A disk that is slow, fails or hangs at the INTENT, and a container that is within its quota again meanwhile.

The whole way of a kill, with real processes, cgroups, pidfds and files. NVML is scripted, and so is the one sync that
makes the INTENT durable: it takes its time, fails, or does not come back before all else has gone on.
"""

import errno
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.attribution.container_processes import HostProcesses
from enforcer.attribution.procfs import CgroupAttributor, PidHandle
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import FOLDER, AuditLog, segments
from enforcer.audit.record import read, verify
from enforcer.audit.writer import AuditWriter
from enforcer.detection.types import KillDecision
from enforcer.kill.executor import KillDependencies, KillExecutor
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.mps.manager import MpsManager
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.status.metrics import Metrics
from gpushare.reasons import Reason
from tests.integration.processes.containers import Container, Kubelet
from tests.support import extent
from tests.support.patience import patient
from tests.support.quotas import in_force
from tests.support.wiring import Messages, loop_parts
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import CARD, card

pytestmark = pytest.mark.node

POLL, GRACE, SLOW, DEADLINE = 0.02, 0.2, 0.25, 0.5
QUOTA, OVER, WITHIN = 4096, 9000, 1000
WORKERS: Final = 4
sync: Final = os.fdatasync


class Disk(Enum):
    """What the sync of the INTENT does."""

    SLOW = "slow"
    FAILS = "EIO"
    HANGS = "hang"


class Trial(GpuReader):
    """One victim that goes over its quota, one enforcer, one disk."""

    def __init__(self, folder: Path, disk: Disk, moment: float | None, container: Container) -> None:
        self.folder, self.disk, self.moment, self.container = folder, disk, moment, container
        self.victim = container.spawn("sleep", "300")
        self.used, self.looks = OVER, 0
        self.durable, self.back = False, threading.Event()
        self.wrong: list[str] = []
        self.sent: list[str] = []
        self.results: list[KillResult] = []

    # The disk.

    def intent_synced(self, file: int) -> None:
        """Stand in for the one sync."""
        if self.disk is Disk.SLOW:
            self._slowly()
        elif self.moment is not None:
            self.used = WITHIN
        if self.disk is Disk.FAILS:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.disk is Disk.HANGS:
            assert self.back.wait(patient(60))
        sync(file)
        self.durable = True

    def _slowly(self) -> None:
        time.sleep(SLOW * (1.0 if self.moment is None else self.moment))
        if self.moment is not None:
            self.used = WITHIN
            time.sleep(SLOW * (1.0 - self.moment))

    # NVML.

    def gpus(self) -> tuple[Any, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        self.looks += 1
        held = (GpuProcess(self.victim.pid, self.used),)
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=self.used, processes=held)

    # The rest of the world.

    def handles(self) -> type[PidHandle]:
        """Return the pidfds of this trial."""
        return type("Ours", (Watched,), {"trial": self})

    def execute(self, executor: KillExecutor, verdict: KillDecision) -> KillResult:
        self.results.append(executor.execute(verdict))
        return self.results[-1]

    def records(self) -> list[dict[str, Any]]:
        lines = [
            line for file in segments(self.folder / FOLDER) for line in file.read_bytes().splitlines(keepends=True)
        ]
        assert verify(lines).ok
        return [read(line) for line in lines]

    def deeds(self) -> list[str]:
        return [record["kind"] for record in self.records() if record["kind"] not in {"GRACE_STARTED", "WARNED"}]

    def run(self) -> None:
        wait = DEADLINE if self.disk is Disk.HANGS else patient(60)
        log = AuditWriter(AuditLog(self.folder / FOLDER), "gpu-7", wait=wait)
        watch = UsageSampler(self, CgroupAttributor())
        tools = KillDependencies(
            usage=watch, quotas=in_force(), processes=HostProcesses(CgroupAttributor(), self.handles()),
            audit_log=log, killer=ProcessKiller(MpsManager()), events=Messages(),
        )  # fmt: skip
        executor = KillExecutor("gpu-7", tools, KillTimeouts(term=1.0, kill=1.0))
        quota = self.container.quota(GPU, QUOTA, grace_seconds=GRACE)
        parts = loop_parts(
            watch=watch, quotas=lambda: (quota,), audit_log=log, events=Messages(), metrics=Metrics(),
            executor=Noted(partial(self.execute, executor)),
        )  # fmt: skip
        enforcer = EnforcementLoop("gpu-7", self.folder, parts)
        until(enforcer, lambda: bool(self.results))
        if self.disk is Disk.HANGS:
            self._disk_comes_back(enforcer, log)
        enforcer.close()
        log.close()

    def _disk_comes_back(self, enforcer: EnforcementLoop, log: AuditWriter) -> None:
        """Only after the loop went on without it, and said so."""
        seen = self.looks
        until(enforcer, lambda: self.looks > seen + 3 and log.problem is not None)
        self.back.set()
        until(enforcer, lambda: self.deeds() == ["INTENT", "ABORTED"])

    def judge(self) -> None:
        """Hold what happened against what may."""
        ended = self.victim.poll() is not None
        assert self.wrong == []
        assert bool(self.sent) == ended
        reason, kinds = self.results[0].reason, self.deeds()
        if self.disk is Disk.SLOW and self.moment is None:
            assert (ended, reason, kinds) == (True, Reason.KILLED, ["INTENT", "OUTCOME"])
        elif self.disk is Disk.SLOW:
            assert (ended, reason, kinds) == (False, Reason.BACK_UNDER_QUOTA, ["INTENT", "ABORTED"])
        else:
            left = [] if self.disk is Disk.FAILS else ["INTENT", "ABORTED"]
            assert (ended, reason, kinds) == (False, Reason.AUDIT_UNWRITABLE, left)


class Noted:
    """An executor whose results are kept."""

    def __init__(self, execute: Callable[[KillDecision], KillResult]) -> None:
        self.execute = execute


class Watched(PidHandle):
    """A pidfd whose signals are held against the state of the world at that moment."""

    trial: Trial

    def send(self, number: signal.Signals) -> bool:
        if self.trial.used <= QUOTA:
            self.trial.wrong.append(f"{number.name} to a process that is within its quota")
        if not self.trial.durable:
            self.trial.wrong.append(f"{number.name} before the INTENT was durable")
        self.trial.sent.append(number.name)
        return super().send(number)


def until(enforcer: EnforcementLoop, true: Callable[[], bool]) -> None:
    """Let the enforcer look until something is true."""
    ends = time.monotonic() + patient(60)
    while not true():
        assert time.monotonic() < ends, "it never came true"
        enforcer.poll()
        time.sleep(POLL)


class Disks:
    """Every sync of this process; those of a trial's INTENT are its own."""

    def __init__(self) -> None:
        self.trials: dict[str, Trial] = {}

    def fdatasync(self, file: int) -> None:
        trial = self.trials.get(str(Path(f"/proc/self/fd/{file}").readlink().parent))
        if trial is None or b'"kind":"INTENT"' not in os.pread(file, 1 << 16, 0).splitlines()[-1]:
            sync(file)
        else:
            trial.intent_synced(file)


def test_no_signal_reaches_a_process_that_is_no_longer_over_and_none_before_its_durable_intent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, chance = extent.trials(25, 1000), random.Random(7)
    disks, kubelet = Disks(), Kubelet()
    monkeypatch.setattr(os, "fdatasync", disks.fdatasync)
    kinds = [(disk, regained) for disk in Disk for regained in (True, False, True)]
    plans = [(disk, chance.random() if regained else None) for disk, regained in kinds * (count // len(kinds) + 1)]

    def one(number: int) -> Trial:
        folder = tmp_path / str(number)
        folder.mkdir(mode=0o700)
        with ExitStack() as stack:
            trial = Trial(folder, *plans[number], stack.enter_context(kubelet.container()))
            disks.trials[str(folder / FOLDER)] = trial
            trial.run()
            trial.judge()
        del disks.trials[str(folder / FOLDER)]
        return trial

    with ThreadPoolExecutor(WORKERS) as pool:
        trials = list(pool.map(one, range(count)))
    regained = [trial for trial in trials if trial.moment is not None]
    signalled = sum(bool(trial.sent) for trial in regained)
    ended = Counter(trial.disk.value for trial in trials if trial.sent)
    assert ended == {"slow": sum(trial.disk is Disk.SLOW and trial.moment is None for trial in trials)}
    extent.figure("sync", "signals to processes no longer over", f"{signalled} in {len(regained):,}")
    early = sum(not trial.durable for trial in trials if trial.sent)
    extent.figure("sync", "signals before a durable INTENT (slow, EIO, hang)", f"{early} in {len(trials):,}")


def test_the_check_sees_an_enforcer_that_does_not_look_again(tmp_path: Path) -> None:
    """The trial's own verdict is tested: who signals whatever the disk did is caught by it."""
    with Kubelet().container() as container:
        trial = Trial(tmp_path, Disk.SLOW, 0.5, container)
        with trial.handles().open(trial.victim.pid) as handle:  # type: ignore[union-attr]
            trial.used = WITHIN
            assert handle.send(signal.SIGTERM)
            assert handle.ended(patient(10))
        assert trial.wrong == [
            "SIGTERM to a process that is within its quota", "SIGTERM before the INTENT was durable",
        ]  # fmt: skip
        assert isinstance(trial.victim, subprocess.Popen)
        with pytest.raises(AssertionError):
            trial.judge()
