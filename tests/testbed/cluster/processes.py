"""Servers in sessions of their own, known by pid and start time, so that a later command can end exactly them."""

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.testbed.cluster.errors import BedError

POLL_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 8.0
LOG_LINES: Final = 25
START_TIME_FIELD: Final = 19
"""Index of ``starttime`` in /proc/<pid>/stat, counted behind the command name (proc(5), field 22)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One started server. ``started`` is its start time in clock ticks since boot: pid and start time never repeat."""

    name: str
    pid: int
    started: int
    log: str = ""
    command: Sequence[str] = ()


def spawn(
    name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, *, echo: bool = True
) -> Process:
    """Start ``command`` in a session of its own, both its outputs appended to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if echo:
        with log.open("a") as file:
            file.write("$ " + " ".join(command) + "\n")
    to_log = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    from_nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    pid = os.posix_spawnp(
        command[0],
        list(command),
        dict(os.environ if env is None else env),
        file_actions=[from_nothing, to_log, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
    )
    return Process(name=name, pid=pid, started=start_time(pid) or 0, log=str(log), command=list(command))


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started, or None when it is gone or a zombie."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[START_TIME_FIELD])
    return None


def alive(process: Process) -> bool:
    """Whether that very process still runs (not merely one that got its number)."""
    return start_time(process.pid) == process.started


def end(processes: Iterable[Process], patience: float = PATIENCE_SECONDS) -> None:
    """Ask each to stop, then stop it. Only processes whose start time still fits are touched."""
    left = mine = list(processes)
    for process in left:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while (left := [process for process in left if alive(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for process in left:
        _kill_group(process)
    for process in mine:
        wait_gone(process, 5)


def kill(process: Process) -> None:
    """End it at once with all its children, as the end of its container would."""
    _kill_group(process)
    wait_gone(process, 5)


def wait_gone(process: Process, seconds: float) -> bool:
    """Wait until it is gone (or a zombie, which is then reaped where it is our child). False when it is still there."""
    deadline = time.monotonic() + seconds
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    _reap(process, deadline)
    return True


def require_alive(processes: Iterable[Process]) -> None:
    """Raise ``BedError`` with the end of its log for the first server that died."""
    for process in processes:
        if not alive(process):
            raise BedError(f"{process.name} (pid {process.pid}) ended:\n{tail(Path(process.log))}")


def tail(log: Path, lines: int = LOG_LINES) -> str:
    """Return the last lines of a log, each shortened to what a screen shows."""
    with suppress(OSError):
        return "\n".join(line[:400] for line in log.read_text(errors="replace").splitlines()[-lines:])
    return f"({log} cannot be read)"


def _signal(process: Process, number: int) -> None:
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if alive(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _kill_group(process: Process) -> None:
    """A server is the leader of its own process group; a worker it leaves behind would keep its ports."""
    if alive(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _reap(process: Process, deadline: float) -> None:
    """Take a child's end: its first thread may be gone while others are still on their way out."""
    with suppress(ChildProcessError):
        while os.waitpid(process.pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
