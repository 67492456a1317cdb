"""Runs workers beside each other: a thread for each, a log and the times of its files for each of their sessions."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from tests.support import patience
from tests.testbed import vm
from tests.testbed.cluster import versions
from tests.testbed.parallel import clock
from tests.testbed.parallel.workers import Session, Worker, work

STOP_SECONDS: Final = 90.0
"""What a session is given to end its cluster, once it is told to stop."""
STOPPED: Final = 130
SPARING: Final = {"GOGC": "400", "GOMEMLIMIT": "1200MiB"}
"""Kubernetes and its runtime collect garbage more rarely: memory for processor time, which is what workers lack."""
APART: Final = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""A network of its own for a session: virtual nodes go on at the addresses that their snapshot has."""
COMMAND: Final = (
    sys.executable, "-m", "pytest", "-v", "-r", "aP", "--durations=30", "-p", "no:cacheprovider",
    "-p", clock.__name__,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a session: pytest's exit code, and of each file how many tests ran and in how many seconds."""

    session: Session
    code: int
    files: Mapping[str, tuple[int, float]]

    @property
    def trouble(self) -> str:
        """Why it failed; empty when it did not. That a file was forgotten is a failure as well."""
        if self.code:
            return f"pytest ended with {self.code}"
        unseen = [file for file in self.session.files if self.files.get(file, (0, 0.0))[0] == 0]
        return f"no test of {', '.join(unseen)} was run" if unseen else ""


@dataclass(slots=True)
class Running:
    """Workers under way. ``folder`` takes logs and times, ``factor`` is the patience of their tests.

    The longest worker, for which all wait in the end, has ``head_start`` seconds in which no other starts its clusters.
    """

    workers: Sequence[Worker]
    folder: Path
    factor: float
    command: Sequence[str] = COMMAND
    head_start: float = 0.0
    results: SimpleQueue[Result | None] = field(default_factory=SimpleQueue)
    _now: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, workers: Sequence[Worker]) -> None:
        """Start workers beside each other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for worker in workers:
            wait = 0.0 if worker is max(workers, key=work) else self.head_start
            self._threads.append(threading.Thread(target=self._run_worker, args=(worker, wait)))
            self._threads[-1].start()

    def next(self, seconds: float) -> Result | None:
        """The next session's result; ``None`` when there is none within ``seconds``, or when it is time to stop."""
        with suppress(Empty):
            return self.results.get(timeout=seconds)
        return None

    @property
    def under_way(self) -> bool:
        """Whether a worker still works, or a result waits."""
        # In this order: a worker puts its last result and ends.
        return any(each.is_alive() for each in self._threads) or not self.results.empty()

    def stop(self) -> None:
        """Ask every session to end with its cluster and start no other; may be called by a signal's handler."""
        self._stopping.set()
        self.results.put(None)

    @property
    def stopping(self) -> bool:
        """Whether the workers were told to stop."""
        return self._stopping.is_set()

    def end(self) -> None:
        """Wait for the sessions that were told to stop; those that do not are killed."""
        with self._lock:
            left = list(self._now.values())
        for process in left:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        for process in left:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self._threads:
            thread.join()

    def progress(self) -> list[str]:
        """One line for each session under way: the test it ended last, and how far it is."""
        with self._lock:
            names = list(self._now)
        return [f"{name:<14} {last_test(self.log(name))}" for name in names]

    def log(self, name: str) -> Path:
        """File with a session's output."""
        return self.folder / f"{name}.log"

    def _run_worker(self, worker: Worker, wait: float) -> None:
        self._stopping.wait(wait)
        for session in worker:
            if not self._stopping.is_set():
                self.results.put(self._run(session))

    def _run(self, session: Session) -> Result:
        times = self.folder / f"{session.name}.json"
        times.unlink(missing_ok=True)
        env = {**SPARING, **os.environ, patience.VARIABLE: str(self.factor), clock.VARIABLE: str(times)}
        env[versions.VARIABLE] = session.kubernetes
        env[vm.VARIABLE] = "vm" if session.virtual else ""
        with self.log(session.name).open("wb") as log, self._lock:
            # A session of its own: Ctrl-C reaches us alone, and we tell it once.
            command = [*(APART if session.virtual else ()), *self.command, *session.files]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
            self._now[session.name] = process
            if self._stopping.is_set():
                process.send_signal(signal.SIGINT)
        code = process.wait()
        with self._lock:
            del self._now[session.name]
        return Result(session=session, code=code, files=_read(times))


def last_test(log: Path) -> str:
    """The last line of a log that tells of a test."""
    with suppress(OSError):
        found = [line for line in log.read_text(errors="replace").splitlines() if "::" in line]
        return found[-1].strip()[:150] if found else "starts"
    return ""


def _read(times: Path) -> dict[str, tuple[int, float]]:
    with suppress(OSError, ValueError):
        return {file: (int(ran), float(seconds)) for file, (ran, seconds) in json.loads(times.read_text()).items()}
    return {}
