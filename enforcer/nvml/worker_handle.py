"""Start the NVML worker process, exchange lines with it, and kill it. ``client`` decides when: NVML can hang."""

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

MAX_ANSWER_BYTES: Final = 16 * 2**20
"""Eight thousand processes take a fiftieth of that."""
_PROGRAM: Final = "enforcer.nvml.worker"


class WorkerExited(Exception):
    """The process has exited, or its answer is too long; then the message says so."""


class WorkerProcess:
    """A running worker process and the socket to it.

    Args:
        command: command line; the process has the socket as its standard input.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, far_end = socket.socketpair()
        self._received = b""
        try:
            with far_end:
                self._process = _start(command, far_end.fileno())
        except OSError:
            self._socket.close()
            raise

    @property
    def pid(self) -> int:
        """Pid of the process."""
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Send a line. Raises ``WorkerExited``."""
        try:
            self._socket.sendall(line)
        except OSError as error:
            raise WorkerExited from error

    def receive(self, end: float) -> bytes | None:
        """Return the next line; ``None`` if none comes before ``kill`` (monotonic clock). Raises ``WorkerExited``."""
        while b"\n" not in self._received:
            if not self._readable(max(0.0, end - time.monotonic())):
                return None
            with suppress(ConnectionError):
                if more := self._socket.recv(65536):
                    self._append(more)
                    continue
            raise WorkerExited
        line, _, self._received = self._received.partition(b"\n")
        return line

    def kill(self, seconds: float) -> bool:
        """Kill the process; return whether it exited in time. The kernel may keep a process in a driver's call."""
        self._socket.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exited

    @property
    def exited(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def _append(self, more: bytes) -> None:
        self._received += more
        if len(self._received) > MAX_ANSWER_BYTES:
            raise WorkerExited(f"its answer has more than {MAX_ANSWER_BYTES} bytes")

    @property
    def exit_reason(self) -> str:
        """Return the signal or exit code of the exited process, in words."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _readable(self, seconds: float) -> bool:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        return bool(ready.poll(seconds * 1000))


def _start(command: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
    # Python finds our modules there as it did here, and nothing in the current directory.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=descriptor, stdout=subprocess.DEVNULL, env=environment)  # noqa: S603 - our own


def command(driver_root: Path) -> list[str]:
    """Return the command line of the worker process for a node's driver."""
    return [sys.executable, "-P", "-m", _PROGRAM, str(driver_root)]
