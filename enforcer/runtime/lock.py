"""One enforcer per state directory: two would kill twice and tear the log's chain.

The directory itself is locked, and a file in it that says by whom. The file may be removed: the next process
still has to wait for the directory, so that no two ever write one log.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from gpushare.errors import ConfigError
from gpushare.reasons import Reason

log = structlog.get_logger()

NAME: Final = "lock"


class StateLock:
    """The lock while it is ours."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file = path, file

    def sign(self) -> None:
        """Write down whose it is. On a full disk the lock holds all the same; only its holder's name is missing."""
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()}\n".encode())

    def lost(self) -> str | None:
        """Say why another enforcer may hold the directory too; ``None`` while none can.

        Where only the file is gone nobody can yet. Who holds it stops all the same, and makes another when it is back:
        an enforcer of an earlier version looks at nothing else.
        """
        try:
            same = os.path.samestat(self._path.lstat(), os.fstat(self._file))
        except FileNotFoundError:
            same = False
        except OSError:  # a disk that fails takes no lock away, and no records either
            return None
        return (
            None
            if same
            else (f"another process removed or replaced {self._path}, so a second enforcer can start on this node")
        )

    def stop_when_lost(self, stopped: threading.Event) -> None:
        """Have the enforcer stop where the lock was taken away, to be started again and wait for it."""
        if (why := self.lost()) is not None and not stopped.is_set():
            log.critical("stopping", reason=str(Reason.CONFLICT), error=why)
            stopped.set()


@contextmanager
def acquire_lock(state: Path, *, wait: bool = False) -> Iterator[StateLock]:
    """Hold the directory for as long as the context lasts; the kernel lets go when the process ends, however it ends.

    Args:
        state: made if it is not there (0700).
        wait: for another enforcer to end, however long that takes. Signals interrupt it.

    Raises:
        ConfigError: another enforcer holds it, where that is not waited for, or it cannot be written.
    """
    with _acquired(state, wait=wait) as hold:
        hold.sign()
        yield hold


@contextmanager
def _acquired(state: Path, *, wait: bool) -> Iterator[StateLock]:
    """Lock what has the names once we have it: while we waited it may have been taken away."""
    while True:
        with ExitStack() as stack:
            _locked(stack, _folder, state, wait=wait)
            hold = StateLock(state / NAME, _locked(stack, _file, state, wait=wait))
            if hold.lost() is None:
                yield hold
                return


def _folder(state: Path) -> int:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _file(state: Path) -> int:
    return os.open(state / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _locked(stack: ExitStack, opened: Callable[[Path], int], state: Path, *, wait: bool) -> int:
    """Open and lock for as long as the stack lasts."""
    try:
        file = opened(state)
    except OSError as error:
        raise ConfigError(f"--state {state} cannot be opened: {error}") from error
    stack.callback(os.close, file)
    try:
        _lock(file, state, wait=wait)
    except OSError as error:
        raise ConfigError(f"--state {state} cannot be locked: {error}") from error
    return file


def _lock(file: int, state: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        problem = f"another enforcer (pid {_holder(state)}) has locked --state {state}"
        if not wait:
            raise ConfigError(f"{problem}; stop that enforcer first", Reason.CONFLICT) from error
        log.warning("waiting for the other enforcer to exit", reason=str(Reason.CONFLICT), error=problem)
        fcntl.flock(file, fcntl.LOCK_EX)


def _holder(state: Path) -> str:
    with suppress(OSError):
        return (state / NAME).read_text("ascii", "replace")[:20].strip() or "unknown"
    return "unknown"
