"""Sends commands to an MPS control daemon through the standard input of NVIDIA's control program.

A tenant that connects to the control socket and stays silent blocks every command to that daemon. So each command has
a deadline, a look-out closes such connections (``control_socket``), and one command runs at a time on this node.
"""

import fcntl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from gpushare.errors import MpsError
from gpushare.reasons import Reason

TIMEOUT: Final = 10.0
"""Seconds a transaction, or a chain of them with one purpose, may take."""
POLL: Final = 0.02
LOOK: Final = 0.1
"""Seconds between looks at who is in the way, while an answer is awaited."""


class Deadline:
    """A moment up to which several steps may wait together."""

    def __init__(self, seconds: float = TIMEOUT) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())


class StallObserver(Protocol):
    """Looks during one transaction what keeps it from being answered."""

    @property
    def hung(self) -> bool:
        """Whether the daemon did not move, and nothing is in its way."""

    def look(self, ours: int) -> None:
        """Look, and clear the way. ``ours``: the process that waits for the answer."""


class NullObserver:
    """No look-out: who is in the way stays there."""

    hung = False

    def look(self, ours: int) -> None:
        """See ``StallObserver``."""


class MpsControl:
    """The control program's standard input: one transaction at a time, whoever of this node asks.

    Args:
        binary: NVIDIA's control program.
        lock: file that whoever has its turn holds locked.
        environment: of the program.
        watch: makes a look-out for each transaction.
    """

    def __init__(
        self,
        binary: Path,
        lock: Path,
        environment: Mapping[str, str],
        watch: Callable[[], StallObserver] = NullObserver,
    ) -> None:
        self._binary, self._lock, self._environment = binary, lock, dict(environment)
        self._watch = watch
        self._hung: float | None = None
        """When the first of the questions was asked that found it hung; none was answered since."""

    def hung_for(self) -> float:
        """Seconds for which the daemon has been hung, with nobody in its way; 0 where it is not known to be."""
        return 0.0 if self._hung is None else time.monotonic() - self._hung

    def ask(self, command: str, deadline: Deadline | None = None, moot: Callable[[], bool] | None = None) -> str:
        """Send one command and return what is answered.

        Args:
            command: one line.
            deadline: 10 s where none is given.
            moot: asked while we wait whether there is no point in it any more.

        Raises:
            MpsError: no daemon is there, it did not answer in time (reason ``MpsControlBlocked``), or ``moot``
                (``AlreadyExited``).
        """
        if "\n" in command:
            raise ValueError(f"{command!r} is more than one command")
        limit = deadline or Deadline()
        try:
            with self._turn(limit):
                code, out, err = self._run(f"{command}\n", limit, moot or _never)
        except TimeoutError as error:
            raise MpsError(
                f"the MPS control daemon did not answer {command!r} in time; a process that keeps a silent connection "
                "to its control socket can cause this",
                Reason.MPS_CONTROL_BLOCKED,
            ) from error
        except OSError as error:
            raise MpsError(f"the enforcer cannot run {self._binary}: {error}") from error
        if code != 0:
            raise MpsError(f"MPS refused {command!r}: {(err or out).strip()}")
        return out

    def _run(self, line: str, deadline: Deadline, moot: Callable[[], bool]) -> tuple[int, str, str]:
        """Let the program say something; its exit code, standard output and standard error."""
        lookout, begun = self._watch(), time.monotonic()
        if moot():
            raise MpsError(
                f"the enforcer did not send {line.strip()!r}: its target had already exited", Reason.ALREADY_EXITED
            )
        program = subprocess.Popen(  # noqa: S603 - our own program
            [self._binary], env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="ascii", errors="replace",
        )  # fmt: skip
        with program:
            try:
                _look(NullObserver(), moot, program.pid)  # to start it took a while, and it was told nothing yet
                out, err = _answer(program, line, deadline, partial(_look, lookout, moot))
                self._hung = None
            except BaseException as error:
                program.kill()
                if isinstance(error, TimeoutError):
                    self._hung = (self._hung or begun) if lookout.hung else None
                raise
        return program.returncode, out, err

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        with self._lock.open("a") as file:
            while not _locked(file.fileno()):
                if not deadline.left():
                    raise TimeoutError
                time.sleep(POLL)
            yield


def _never() -> bool:
    return False


def _look(lookout: StallObserver, moot: Callable[[], bool], ours: int) -> None:
    if moot():
        raise MpsError("the enforcer cancelled a command to MPS: its target had already exited", Reason.ALREADY_EXITED)
    lookout.look(ours)


def _answer(
    program: subprocess.Popen[str], words: str, deadline: Deadline, look: Callable[[int], None]
) -> tuple[str, str]:
    """Standard output and standard error of a program that is told something. Raises ``TimeoutError``."""
    unsaid: str | None = words
    while True:
        with suppress(subprocess.TimeoutExpired):
            return program.communicate(unsaid, timeout=max(POLL, min(LOOK, deadline.left())))
        unsaid = None
        if not deadline.left():
            raise TimeoutError
        look(program.pid)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
