"""Run NVIDIA's control program to send one line to an MPS control daemon; ``daemon_commands`` has the commands.

A tenant that connects to the control socket and stays silent blocks every command to that daemon. So each command has
a deadline, an observer closes such connections (``control_socket``), and one command runs at a time on this node.
"""

import fcntl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from enforcer.mps.watchdog import DaemonWatchdog, StallProbe
from gpushare.errors import MpsError
from gpushare.reasons import Reason

TIMEOUT: Final = 10.0
"""Seconds a transaction, or a chain of them with one purpose, may take."""
POLL: Final = 0.02
LOOK: Final = 0.1
"""Seconds between two observations while the program waits for an answer."""


class Deadline:
    """A moment up to which several steps may wait together."""

    def __init__(self, seconds: float = TIMEOUT) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())


@dataclass(eq=False)
class ControlProgram:
    """Sends commands through the control program's standard input, one at a time on this node.

    Args:
        binary: NVIDIA's control program.
        lock: file that is locked while a command runs.
        environment: of the program.
        watched: the daemon; observed while a command runs.
    """

    binary: Path
    lock: Path
    environment: Mapping[str, str]
    watched: DaemonWatchdog
    _hung: float | None = field(default=None, init=False)
    """When the first command was sent that found the daemon hung; none was answered since."""

    def hung_for(self) -> float:
        """Seconds for which the daemon has been hung while no connection blocked it; 0 if it is not known to hang."""
        return 0.0 if self._hung is None else time.monotonic() - self._hung

    def ask(self, command: str, deadline: Deadline | None = None, moot: Callable[[], bool] = bool) -> str:
        """Send one command and return the answer.

        Args:
            command: one line.
            deadline: 10 s by default.
            moot: returns whether the command is not needed any more; called until the answer comes.

        Raises:
            MpsError: no daemon runs, it did not answer in time (reason ``MpsControlBlocked``), or ``moot``
                (``AlreadyExited``).
        """
        if "\n" in command:
            raise ValueError(f"{command!r:.80} is more than one command")
        limit = deadline or Deadline()
        try:
            with self._turn(limit):
                code, out, err = self._run(f"{command}\n", limit, moot)
        except TimeoutError as error:
            raise MpsError(
                f"the MPS control daemon did not answer {command!r:.80} in time; a process that keeps a silent "
                "connection to its control socket can cause this",
                Reason.MPS_CONTROL_BLOCKED,
            ) from error
        except OSError as error:
            raise MpsError(f"the enforcer cannot run {self.binary}: {error}") from error
        if code != 0:
            problem = (err or out).strip() or "the MPS control daemon closed the connection"
            raise MpsError(f"MPS refused {command!r:.80}: {problem}")
        return out

    def _run(self, line: str, deadline: Deadline, moot: Callable[[], bool]) -> tuple[int, str, str]:
        """Run the program once; return its exit code, standard output and standard error."""
        observer, begun = StallProbe(self.watched), time.monotonic()
        if moot():
            raise MpsError(
                f"the enforcer did not send {line.strip()!r:.80} to MPS: the MPS client that it is for had already "
                "exited",
                Reason.ALREADY_EXITED,
            )
        program = subprocess.Popen(  # noqa: S603 - our own program
            [self.binary], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="ascii", errors="replace",
        )  # fmt: skip
        with program:
            try:
                _check(moot)  # starting it took a while, and nothing is sent yet
                out, err = _answer(program, line, deadline, partial(_observe, observer, moot))
                self._hung = None
            except BaseException as error:
                program.kill()
                if isinstance(error, TimeoutError):
                    self._hung = (self._hung or begun) if observer.hung else None
                raise
        return program.returncode, out, err

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        with self.lock.open("a") as file:
            while not _locked(file.fileno()):
                if not deadline.left():
                    raise TimeoutError
                time.sleep(POLL)
            yield


def _check(moot: Callable[[], bool]) -> None:
    if moot():
        raise MpsError(
            "the enforcer cancelled a command to MPS: the MPS client that it is for had already exited",
            Reason.ALREADY_EXITED,
        )


def _observe(observer: StallProbe, moot: Callable[[], bool], ours: int) -> None:
    _check(moot)
    observer.observe(ours)


def _answer(
    program: subprocess.Popen[str], command: str, deadline: Deadline, observe: Callable[[int], None]
) -> tuple[str, str]:
    """Send the command; return standard output and standard error. Raises ``TimeoutError``."""
    unsent: str | None = command
    while True:
        with suppress(subprocess.TimeoutExpired):
            return program.communicate(unsent, timeout=max(POLL, min(LOOK, deadline.left())))
        unsent = None
        if not deadline.left():
            raise TimeoutError
        observe(program.pid)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
