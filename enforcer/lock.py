"""One enforcer per state directory: two would kill twice and tear the log's chain."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gpushare.errors import ConfigError
from gpushare.reasons import Reason

NAME: Final = "lock"


@contextmanager
def held(state: Path) -> Iterator[None]:
    """Hold the directory for as long as the context lasts; the kernel lets go when the process ends, however it ends.

    Raises:
        ConfigError: another enforcer holds it, or it cannot be written.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(state / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"--state {state} cannot be used: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(file, 20, 0).decode("ascii", "replace").strip()
        os.close(file)
        if not isinstance(error, BlockingIOError):
            raise ConfigError(f"--state {state} cannot be locked: {error}") from error
        message = f"--state {state} is held by another enforcer (pid {holder or 'unknown'}); stop that one first"
        raise ConfigError(message, Reason.CONFLICT) from error
    try:
        with suppress(OSError):  # on a full disk the lock holds all the same; only its holder's name is missing
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(file)
