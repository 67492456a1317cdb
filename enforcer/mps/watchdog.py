"""Looking out while an MPS control daemon does not answer: what keeps it, and the way cleared where that hurts nobody.

Seen so far: somebody stopped its process; somebody wrote nonsense into its log pipe, at which the thread that reads it
ends, and the daemon waits for room there for ever (observed on 535.309.01); a silent client blocks the control socket
(``control_socket``).
Where it is none of these and its main thread did not move at all, it hangs.
"""

import fcntl
import os
import signal
import stat
import struct
import termios
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from enforcer.attribution.procfs import PidHandle, read_stat
from enforcer.mps.control_socket import ControlSocket, family, waiting
from enforcer.mps.incidents import Incident, IncidentLog
from enforcer.mps.state_file import DaemonStateFile
from gpushare.reasons import Reason

PATIENCE: Final = 1.0
"""Seconds of silence; a client speaks within microseconds. After the first in a transaction ``SHORT`` has to do."""
SHORT: Final = 0.2
STILL_SECONDS: Final = 3.0
"""A daemon that waits for something looks up once a second."""
WRITES: Final = {"x86_64": frozenset({1, 20}), "aarch64": frozenset({64, 66})}
"""write, writev."""
PIPE_FULL: Final = 16 * 1024
"""Bytes that nobody read: the pipe takes 65,536."""
CHUNK: Final = 65536
MOST: Final = 64
"""Chunks read at once: who writes as fast as we read must not keep us."""
STOPPED: Final = "T"


class DaemonWatchdog:
    """One daemon, as seen from outside.

    Args:
        gpu: for reports.
        pipe: its pipe directory.
        notes: know which process the daemon is.
        incidents: takes what was in the way.
    """

    def __init__(self, gpu: str, pipe: Path, notes: DaemonStateFile, incidents: IncidentLog) -> None:
        self.door: Final = ControlSocket(gpu, incidents)
        self.notes: Final = notes
        self._gpu, self._log, self._incidents = gpu, pipe / "log", incidents

    def resume_stopped(self) -> bool:
        """Set daemon and servers going again where somebody stopped them; whether one was."""
        pid = self.notes.process()
        asleep = [each for each in family(pid) if _wake(each)] if pid is not None else []
        if asleep:
            self._tell(Reason.MPS_HUNG, "was stopped by another process (SIGSTOP); the enforcer sent SIGCONT")
        return bool(asleep)

    def drain_log_pipe(self, *, blocked: bool) -> bool:
        """Make room in its log pipe, where it is full (``blocked``: and the daemon waits for that); whether it was."""
        pid = self.notes.process()
        if blocked and not (pid is not None and any(_is(pid, each, self._log) for each in waiting(pid, WRITES))):
            return False
        if not _drain(self._log, 1 if blocked else PIPE_FULL):
            return False
        self._tell(
            Reason.MPS_HUNG, "hung on its log pipe, which another process had filled; the enforcer emptied the pipe"
        )
        return True

    def _tell(self, reason: Reason, what: str) -> None:
        self._incidents.record(Incident(self._gpu, reason, f"the MPS daemon of {self._gpu} {what}"))


class StallProbe:
    """The look-out during one transaction."""

    def __init__(self, watched: DaemonWatchdog) -> None:
        self._watched, self._patience = watched, PATIENCE
        self._since: dict[int, float] = {}
        self._trace: str | None = None
        self._still_since = 0.0
        self.hung = False
        """Whether, so far, it did not move and nothing was in its way."""

    def observe(self, ours: int) -> None:
        """Look what is in the way, and remove it. ``ours``: the process that waits for the answer."""
        now = time.monotonic()
        hindered = self._watched.resume_stopped() or self._watched.drain_log_pipe(blocked=True)
        pid = self._watched.notes.process()
        hindered |= pid is not None and self._clear_door(pid, ours, now)
        trace = None if pid is None or hindered else _trace(pid)
        if trace is None or trace != self._trace:
            self._still_since = now
        self._trace = trace
        self.hung = trace is not None and now - self._still_since >= STILL_SECONDS

    def _clear_door(self, daemon: int, ours: int, now: float) -> bool:
        """Shut out who has been silent for too long; whether anybody stands there."""
        with ExitStack() as stack:
            standing = self._watched.door.idle_connections(daemon, ours)
            for connection in standing.values():
                stack.enter_context(closing(connection))
            self._since = {inode: self._since.get(inode, now) for inode in standing}
            for inode, connection in standing.items():
                if now - self._since[inode] >= self._patience:
                    self._watched.door.close_connection(connection)
                    self._patience = SHORT
        return bool(standing)


def _wake(pid: int) -> bool:
    stat_ = read_stat(Path(f"/proc/{pid}/stat"))
    if stat_ is None or stat_.state != STOPPED:
        return False
    handle = PidHandle.open(pid)
    if handle is None:
        return False
    with handle:
        # Between the look and the hold the number may have come to mean another: that one was not stopped.
        again = read_stat(Path(f"/proc/{pid}/stat"))
        return again == stat_ and handle.send(signal.SIGCONT)


def _is(pid: int, descriptor: int, file: Path) -> bool:
    """Whether a process has this file open under that descriptor."""
    try:
        return os.path.samestat(Path(f"/proc/{pid}/fd/{descriptor}").stat(), file.lstat())
    except OSError:
        return False


def _drain(pipe: Path, least: int) -> bool:
    """Read a named pipe empty where that many bytes wait in it; whether they did."""
    with suppress(OSError):
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or _waiting_bytes(descriptor) < least:
                return False
            with suppress(BlockingIOError):
                for _ in range(MOST):
                    if not os.read(descriptor, CHUNK):
                        break
        finally:
            os.close(descriptor)
        return True
    return False


def _waiting_bytes(descriptor: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0])


def _trace(pid: int) -> str | None:
    """What the main thread waits in and how often it woke up; ``None`` where that is unknown."""
    try:
        call = Path(f"/proc/{pid}/task/{pid}/syscall").read_text()
        status = Path(f"/proc/{pid}/task/{pid}/status").read_text()
    except OSError:
        return None
    switches = [line for line in status.splitlines() if "ctxt_switches" in line]
    return None if call.startswith("running") else "\n".join([call, *switches])
