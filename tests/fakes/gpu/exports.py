"""Memory behind descriptors, as Python sees it: ``exports.c`` makes the files.

A file has the line ``gpu=``, ``memory_mib=``, ``of=`` and ``of_start=``, and a second one once its maker released it. A
copy of the open file holds its lock, and so the memory.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

FOLDER: Final = "nvidiactl"


def used_mib(folder: Path, gpu: str, started: Callable[[int], int | None]) -> int:
    """MiB of a GPU that descriptors alone hold; ``started`` tells a process from a later one of its number."""
    return sum(_locked_mib(file, gpu, started) for file in folder.glob("[!.]*"))


def make(folder: Path, gpu: str, mib: int) -> int:
    """A descriptor that alone holds ``mib``: its maker has released them. Only copies of it keep the memory."""
    descriptor, hidden = tempfile.mkstemp(prefix=".", dir=folder)
    os.fchmod(descriptor, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.write(descriptor, f"gpu={gpu}\tmemory_mib={mib}\tof={os.getpid()}\tof_start=0\nreleased\n".encode())
    Path(hidden).rename(folder / Path(hidden).name.removeprefix("."))
    return descriptor


def _locked_mib(file: Path, gpu: str, started: Callable[[int], int | None]) -> int:
    with suppress(FileNotFoundError), file.open() as text:
        with suppress(BlockingIOError):
            fcntl.flock(text, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()  # nobody holds it any more
            return 0
        first, *more = text.read().splitlines() or [""]
        row = dict(part.split("=", 1) for part in first.split("\t") if part)
        lives = row and str(started(int(row["of"]))) == row["of_start"]
        return int(row["memory_mib"]) if row and row["gpu"] == gpu and (more or not lives) else 0
    return 0
