"""Replace our own files atomically."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.errors import NewerFormatError
from gpushare.files import read_regular_file, sync
from gpushare.formats import HEAD_BYTES, newer, version_of

READABLE: Final = 0o644


def replace(path: Path, data: bytes, *, durable: bool = False, report: bool = False, readable: bool = False) -> None:
    """Put a file in place whole: a reader sees the old or the new one, also after a crash if it is to be durable.

    Args:
        path: of the file; its folder is never made here.
        data: its content.
        durable: wait for the disk.
        report: it says how things are now: it replaces also one that a newer release wrote.
        readable: for everybody, whatever the umask.

    Raises:
        NewerFormatError: the file there is of a newer version than ``data``.
        OSError: it could not be written; no half of it is left.
    """
    if not report:
        _keep_newer(path, version_of(data))
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb", opener=_no_link) as file:
            if readable:
                os.fchmod(file.fileno(), READABLE)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def unwritable(paths: Iterable[Path]) -> Path | None:
    """Return the first of these that is there, and read-only or immutable."""
    return next((each for each in paths if os.access(each, os.F_OK) and not os.access(each, os.W_OK)), None)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _keep_newer(path: Path, version: int) -> None:
    try:
        found = version_of(read_regular_file(path, HEAD_BYTES))
    except OSError:
        return
    if found > version:
        raise NewerFormatError(newer(path.name, found, version))
