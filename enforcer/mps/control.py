"""Talks to an MPS control daemon through the standard input of NVIDIA's control program.

A tenant that connects to the control socket and stays silent stops every administration of that daemon. So every
transaction has a deadline, and one transaction runs at a time whoever of this node asks.
"""

import fcntl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpushare.errors import MpsError
from gpushare.reasons import Reason

TIMEOUT: Final = 10.0
"""Seconds a transaction, or a chain of them with one purpose, may take."""
POLL: Final = 0.02


class Deadline:
    """A moment up to which several steps may wait together."""

    def __init__(self, seconds: float = TIMEOUT) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())


class MpsControl:
    """The control program's standard input: one transaction at a time, whoever of this node asks."""

    def __init__(self, binary: Path, lock: Path, environment: Mapping[str, str]) -> None:
        self._binary, self._lock, self._environment = binary, lock, dict(environment)

    def ask(self, command: str, deadline: Deadline | None = None) -> str:
        """Send one command and return what is answered.

        Raises:
            MpsError: no daemon is there, or (reason ``ControlBlocked``) it did not answer in time.
        """
        if "\n" in command:
            raise ValueError(f"{command!r} is more than one command")
        limit = deadline or Deadline()
        try:
            with self._turn(limit):
                done = subprocess.run(  # noqa: S603 - our own program and words
                    [self._binary], input=f"{command}\n", env=self._environment, capture_output=True,
                    encoding="ascii", errors="replace", timeout=max(POLL, limit.left()), check=False,
                )  # fmt: skip
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            raise MpsError(
                f"the MPS control daemon did not answer {command!r} in time; a process that holds its control socket "
                "and stays silent has this effect",
                Reason.CONTROL_BLOCKED,
            ) from error
        except OSError as error:
            raise MpsError(f"{self._binary} cannot be run: {error}") from error
        if done.returncode != 0:
            raise MpsError(f"MPS did not take {command!r}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        with self._lock.open("a") as file:
            while not _locked(file.fileno()):
                if not deadline.left():
                    raise TimeoutError
                time.sleep(POLL)
            yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
