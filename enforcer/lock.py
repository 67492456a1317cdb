"""One enforcer per state directory: two would kill twice and tear the log's chain."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from gpushare.errors import ConfigError
from gpushare.reasons import Reason

log = structlog.get_logger()

NAME: Final = "lock"


class Hold:
    """The lock while it is ours."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file = path, file

    def lost(self) -> str | None:
        """Say why another enforcer may hold the directory too; ``None`` while none can.

        Our file stays locked, whoever takes it away, but then the next enforcer makes and locks another of its name.
        """
        try:
            same = os.path.samestat(self._path.lstat(), os.fstat(self._file))
        except FileNotFoundError:
            same = False
        except OSError:  # a disk that fails takes no lock away, and no records either
            return None
        return None if same else f"{self._path} was taken away: another enforcer may be at work"

    def stop_when_lost(self, stopped: threading.Event) -> None:
        """Have the enforcer stop where the lock was taken away, to be started again and wait for it."""
        if (why := self.lost()) is not None and not stopped.is_set():
            log.critical("stopping", reason=str(Reason.CONFLICT), error=why)
            stopped.set()


@contextmanager
def held(state: Path, *, wait: bool = False) -> Iterator[Hold]:
    """Hold the directory for as long as the context lasts; the kernel lets go when the process ends, however it ends.

    Args:
        state: made if it is not there (0700).
        wait: for another enforcer to end, however long that takes. Signals interrupt it.

    Raises:
        ConfigError: another enforcer holds it, where that is not waited for, or it cannot be written.
    """
    path, file = state / NAME, _acquired(state, wait=wait)
    try:
        with suppress(OSError):  # on a full disk the lock holds all the same; only its holder's name is missing
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        yield Hold(path, file)
    finally:
        os.close(file)


def _acquired(state: Path, *, wait: bool) -> int:
    """Lock the file that has the name once we have it: while we waited it may have been taken away."""
    while True:
        file = _opened(state)
        try:
            _lock(file, state, wait=wait)
            if Hold(state / NAME, file).lost() is None:
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _opened(state: Path) -> int:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(state / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--state {state} cannot be used: {error}") from error


def _lock(file: int, state: Path, *, wait: bool) -> None:
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            said = f"--state {state} is held by another enforcer (pid {_holder(file)})"
            if not wait:
                raise ConfigError(f"{said}; stop that one first", Reason.CONFLICT) from error
            log.warning("waiting for its end", reason=str(Reason.CONFLICT), error=said)
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise ConfigError(f"--state {state} cannot be locked: {error}") from error


def _holder(file: int) -> str:
    return os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"
