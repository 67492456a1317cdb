"""One process that asks NVML, as the enforcer holds it: started, asked, listened to, ended."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST: Final = 16 * 2**20
"""Bytes of an answer. Eight thousand processes take a fiftieth of that."""
_PROGRAM: Final = "enforcer.nvml.worker"


class WorkerExited(Exception):
    """The process has ended, or talks nonsense; then that is said."""


class WorkerProcess:
    """A running process and the socket to it.

    Args:
        command: what to run; it has the socket as its standard input.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._door, theirs = socket.socketpair()
        self._said = b""
        try:
            with theirs:
                self._process = _start(command, theirs.fileno())
        except OSError:
            self._door.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def say(self, line: bytes) -> None:
        """Send a line. Raises ``Gone``."""
        try:
            self._door.sendall(line)
        except OSError as error:
            raise WorkerExited from error

    def hear(self, end: float) -> bytes | None:
        """Wait for the next line until ``end`` on the monotonic clock; ``None``: none came. Raises ``Gone``."""
        while b"\n" not in self._said:
            if not self._readable(max(0.0, end - time.monotonic())):
                return None
            with suppress(ConnectionError):
                if more := self._door.recv(65536):
                    self._take(more)
                    continue
            raise WorkerExited
        line, _, self._said = self._said.partition(b"\n")
        return line

    def end(self, seconds: float) -> bool:
        """End it; say whether it has gone within that time. The kernel may hold a process in a driver's call."""
        self._door.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.gone

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def _take(self, more: bytes) -> None:
        self._said += more
        if len(self._said) > MOST:
            raise WorkerExited(f"an answer of more than {MOST} bytes")

    @property
    def ended_by(self) -> str:
        """How it ended, in words; it has."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _readable(self, seconds: float) -> bool:
        ready = select.poll()
        ready.register(self._door, select.POLLIN)
        return bool(ready.poll(seconds * 1000))


def _start(command: Sequence[str], door: int) -> subprocess.Popen[bytes]:
    # Python finds our modules there as it did here, and nothing in the current directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=door, stdout=subprocess.DEVNULL, env=environment)  # noqa: S603 - our own


def command(driver_root: Path) -> list[str]:
    """Tell how the process is started for a node's driver."""
    return [sys.executable, "-P", "-m", _PROGRAM, str(driver_root)]
