"""Instruments at the boundary to the kernel: they write down syncs and signals, and play a disk that fails.

A signal is told of before it is sent and a sync after it has returned: whatever the order of the two is in the trace,
the truth is no better.
"""

import errno
import io
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.safety.matrix.page import Page, Switch
from tests.safety.matrix.trace import Moment, Moments, Trace

SLOW_SYNC: Final = 0.25
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MAX_LOG: Final = 1 << 20


class Instruments:
    """Stand between one process and the kernel."""

    def __init__(self, state: Path, page: Page, trace: Trace, moments: Moments) -> None:
        self._state, self._audit = str(state), str(state / "audit")
        self._page, self._trace, self._moments = page, trace, moments
        self._pids: dict[int, int] = {}

    def install(self) -> None:
        for name in ("open", "write", "pwrite", "ftruncate", "fsync", "fdatasync", "pidfd_open", "kill", "killpg"):
            setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        for module, name in ((signal, "pidfd_send_signal"), (io, "open")):
            setattr(module, name, getattr(self, f"_{name if module is signal else 'file'}")(getattr(module, name)))

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def made(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            ours = self._ours(dir_fd) if dir_fd is not None else os.fspath(path).startswith(self._state)
            if ours and flags & WRITING:
                self._refuse(Switch.EROFS)
            self._refuse(Switch.ENOMEM)
            return real(path, flags, mode, dir_fd=dir_fd)

        return made

    def _file(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def made(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            self._refuse(Switch.ENOMEM)
            if str(file).startswith(self._state) and "r" not in mode:
                self._refuse(Switch.EROFS)
                self._refuse(Switch.ENOSPC)
            return real(file, mode, *args, **kwargs)

        return made

    def _write(self, real: Callable[..., int]) -> Callable[..., int]:
        def made(file: int, data: bytes, *rest: Any) -> int:
            if self._ours(file):
                self._refuse(Switch.EROFS)
                if self._page.on(Switch.ENOSPC) and len(data) > 1:
                    return real(file, data[: len(data) // 2], *rest)  # a short one first, as a filling disk does
                self._refuse(Switch.ENOSPC)
            return real(file, data, *rest)

        return made

    _pwrite = _write

    def _ftruncate(self, real: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def made(file: int, size: int) -> None:
            if self._ours(file):
                self._refuse(Switch.EROFS)
            real(file, size)

        return made

    def _fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def made(file: int) -> None:
            where = self._path(file)
            if where.startswith(self._audit):
                self._refuse(Switch.EIO)
                time.sleep(SLOW_SYNC * self._page.on(Switch.SLOW_SYNC))
            real(file)
            if where == self._audit:
                self._trace.tell("names synced", names=[path.name for path in Path(self._audit).iterdir()])
            elif where.startswith(self._audit):
                self._synced(file, where)

        return made

    _fdatasync = _fsync

    def _synced(self, file: int, where: str) -> None:
        """Tell which INTENTs, and which answers to them, are on the disk for good."""
        found = []
        for line in os.pread(file, MAX_LOG, 0).splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        intents = [[each["seq"], each.get("containerId")] for each in found if each.get("kind") == "INTENT"]
        answered = [each["intent"] for each in found if each.get("kind") in {"OUTCOME", "ABORTED"}]
        self._trace.tell("synced", file=Path(where).name, intents=intents, answered=answered)
        if found and found[-1].get("kind") == "INTENT":
            self._moments.reached(Moment.AFTER_INTENT)

    def _pidfd_open(self, real: Callable[..., int]) -> Callable[..., int]:
        def made(pid: int, flags: int = 0) -> int:
            self._refuse(Switch.ENOMEM)
            file = real(pid, flags)
            self._pids[file] = pid
            return file

        return made

    def _pidfd_send_signal(self, real: Callable[..., None]) -> Callable[..., None]:
        def made(file: int, number: int, *rest: Any) -> None:
            self._trace.tell("signal", pid=self._pids[file], number=int(number), via="pidfd")
            real(file, number, *rest)
            self._moments.reached(Moment.AFTER_SIGNAL)

        return made

    def _kill(self, real: Callable[[int, int], None]) -> Callable[[int, int], None]:
        def made(pid: int, number: int) -> None:
            if number:
                self._trace.tell("signal", pid=pid, number=int(number), via="kill")
            real(pid, number)
            if number:
                self._moments.reached(Moment.AFTER_SIGNAL)

        return made

    _killpg = _kill

    def _refuse(self, which: Switch) -> None:
        if self._page.on(which):
            raise OSError(getattr(errno, which.name), os.strerror(getattr(errno, which.name)))

    def _path(self, file: int) -> str:
        return str(Path(f"/proc/self/fd/{file}").readlink())

    def _ours(self, file: int) -> bool:
        with suppress(OSError):
            return self._path(file).startswith(self._state)
        return False
