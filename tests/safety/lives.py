"""One grace period over several lives of the enforcer: ``python -m tests.safety.lives TRIALS``, which prints JSON.

Each life is a process of its own, forked so that it starts within milliseconds, and ends by SIGKILL. It runs the
product's loop on the machine's boot clock, with its state on disk; only NVML and the Executor are scripted. Each look
and each decision to kill is a line in a file, with the boot clock's time.
"""

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.log import AuditLog
from enforcer.audit.writer import AuditWriter
from enforcer.detection import state_file
from enforcer.detection.types import KillDecision
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.runtime.clock import CLOCK
from enforcer.status.metrics import Metrics
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.wiring import Attribution, Messages, loop_parts
from tests.unit.enforcer.made import CONTAINER, GPU, POD, quota
from tests.unit.enforcer.test_loop import CARD, card

POLL: Final = 0.02
GRACE: Final = 0.2
LOOP: Final = 3
LOOP_GRACE: Final = 1.0
"""Looks of each life in a restart loop, and what such a loop tries to outlast."""
PATIENCE: Final = 60.0
RUINS: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: b"\0" * len(data),
    "another boot": lambda data: data.replace(b'"bootId": "', b'"bootId": "x'),
    "an older version": lambda data: data.replace(b'"version": 5', b'"version": 4'),
    "another program's": lambda _: b'{"version": 5, "name": "somebody else"}\n',
    "over for longer than the machine runs": lambda data: data.replace(b'"overFor": ', b'"overFor": 9999'),
    "over for ever": lambda data: data.replace(b'"overFor": ', b'"overFor": -'),
}


class Life(GpuReader):
    """What one life sees, decides and writes down."""

    def __init__(self, folder: Path, grace: float, told: TextIO) -> None:
        self.folder, self.grace, self._told, self._sampled = folder, grace, told, False

    def clock(self) -> float:
        now = CLOCK.boottime()
        if self._sampled:  # the time that follows a sample is its time
            self._sampled = False
            self._say("look", now)
        return now

    def gpus(self) -> tuple[Any, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        self._sampled = True
        return GpuSample(uuid=uuid, total_mib=CARD, used_mib=9000, processes=(GpuProcess(100, 9000),))

    def identify(self, pid: int) -> Identity:
        return Identity(pid=pid, start=pid, owner=ContainerRef(POD, CONTAINER), cgroup_inode=7)

    def execute(self, verdict: KillDecision) -> KillResult:
        self._say("kill", verdict.at)
        return KillResult(Reason.ALREADY_EXITED)

    def _say(self, what: str, when: float) -> None:
        self._told.write(f"{what} {when!r}\n")
        self._told.flush()

    def run(self) -> None:
        allowed = (quota(grace_seconds=self.grace),)
        parts = loop_parts(
            watch=UsageSampler(self, Attribution(self.identify)), quotas=lambda: allowed, executor=self,
            audit_log=AuditWriter(AuditLog(self.folder / "audit"), "gpu-7"), events=Messages(), metrics=Metrics(),
        )  # fmt: skip
        EnforcementLoop("gpu-7", self.folder, parts, clock=FakeClock(self.clock)).run(threading.Event(), POLL)


@dataclass(slots=True)
class Trial:
    """One container over its quota from the first look on."""

    folder: Path
    grace: float
    lives: int = 0
    looks: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    @contextmanager
    def life(self) -> Iterator[None]:
        """Have a life; at the end of the context it is killed, if it has not ended by itself."""
        pid = os.fork()
        if pid == 0:
            try:
                with (self.folder / "told").open("a") as told, (self.folder / "log").open("a") as log:
                    structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
                    Life(self.folder, self.grace, told).run()
            except BaseException:  # noqa: BLE001 - whatever it is, a fork must not go on as its parent does
                traceback.print_exc()
            finally:
                os._exit(1)
        self.lives += 1
        try:
            yield
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.read()

    def read(self) -> None:
        """Take in what was told; a line that a SIGKILL cut short was not said."""
        whole, _, _ = (self.folder / "told").read_text().rpartition("\n")
        rows = [line.split(" ") for line in whole.split("\n") if line]
        self.looks = [float(when) for what, when in rows if what == "look"]
        self.kills = [float(when) for what, when in rows if what == "kill"]

    def wait(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.lives} lives, {len(self.looks)} looks, {len(self.kills)} kills")
            time.sleep(0.002)
            if (self.folder / "told").exists():
                self.read()

    def remembered(self) -> bool:
        return (self.folder / state_file.NAME).exists()

    def late(self, since: int = 0) -> int:
        """Looks from the first at which the grace counted from look ``since`` was over, to the one that killed."""
        due = next(n for n, at in enumerate(self.looks) if n >= since + 2 and at >= self.looks[since] + self.grace)
        return self.looks.index(self.kills[0]) - due


def at_points(trial: Trial, points: Sequence[float]) -> int:
    """SIGKILL at these shares of the grace period; by how many looks the kill came late."""
    for number, point in enumerate(points):
        with trial.life():
            trial.wait(trial.remembered)
            trial.wait(lambda: bool(trial.looks))
            if number == 0:
                begun = trial.looks[0]
            while CLOCK.boottime() < begun + point * trial.grace:
                time.sleep(0.001)
    with trial.life():
        trial.wait(lambda: bool(trial.kills))
    return trial.late()


def in_a_loop(trial: Trial) -> int:
    """SIGKILL each life after a few looks, until shortly before the end; by how many looks the kill came late."""
    while not trial.looks or CLOCK.boottime() < trial.looks[0] + 0.9 * trial.grace:
        with trial.life():
            before = len(trial.looks)
            trial.wait(lambda before=before: len(trial.looks) >= before + LOOP)  # type: ignore[misc]
            trial.wait(trial.remembered)
    with trial.life():
        trial.wait(lambda: bool(trial.kills))
    return trial.late()


def in_ruins(trial: Trial, ruin: Callable[[bytes], bytes | None]) -> tuple[int, bool]:
    """SIGKILL in mid-grace and spoil the file: looks late from the next life's first on, and whether it was said."""
    with trial.life():
        trial.wait(trial.remembered)
        trial.wait(lambda: bool(trial.looks))
        while CLOCK.boottime() < trial.looks[0] + 0.6 * trial.grace:
            time.sleep(0.001)
    file, since = trial.folder / state_file.NAME, len(trial.looks)
    spoilt = ruin(file.read_bytes())
    if spoilt is None:
        file.unlink()
    else:
        file.write_bytes(spoilt)
    with trial.life():
        trial.wait(lambda: bool(trial.kills))
    return trial.late(since), "budgets restarted" in (trial.folder / "log").read_text() or spoilt is None


@contextmanager
def trial(grace: float = GRACE) -> Iterator[Trial]:
    with tempfile.TemporaryDirectory() as folder:
        yield Trial(Path(folder), grace)


def main(trials: int) -> dict[str, Any]:
    """Run all three kinds; the looks late of each trial, and how many restarts it took."""
    chance, restarts = random.Random(25), 0
    points: list[int] = []
    while restarts < trials:
        with trial() as found:
            points.append(at_points(found, sorted(chance.uniform(0.05, 0.9) for _ in range(chance.choice([1, 1, 2])))))
            restarts += found.lives - 1
    loops, lives = [], 0
    for _ in range(max(2, trials // 20)):
        with trial(LOOP_GRACE) as found:
            loops.append(in_a_loop(found))
            lives += found.lives
    ruins: dict[str, tuple[int, bool]] = {}
    for name, ruin in RUINS.items():
        with trial() as found:
            ruins[name] = in_ruins(found, ruin)
    return {"restarts": restarts, "points": points, "loops": loops, "lives": lives, "ruins": ruins}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
