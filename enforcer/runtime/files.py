"""Replace our own files atomically; read them although a tenant may have put a pipe or a link in their place."""

import errno
import os
import stat
from pathlib import Path

from gpushare.errors import NewerFormatError
from gpushare.formats import HEAD_BYTES, newer, version_of


def replace(path: Path, data: bytes, *, durable: bool = False, report: bool = False) -> None:
    """Put a file in place whole: a reader sees the old or the new one, also after a crash if it is to be durable.

    A ``report`` says how things are now: it replaces also one that a newer release wrote.

    Raises:
        NewerFormatError: the file there is of a newer version than ``data``.
        OSError: it could not be written.
    """
    if not report:
        _keep_newer(path, version_of(data))
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _keep_newer(path: Path, version: int) -> None:
    try:
        found = version_of(read_regular_file(path, HEAD_BYTES))
    except OSError:
        return
    if found > version:
        raise NewerFormatError(newer(path.name, found, version))


def read_regular_file(file: Path, most: int) -> bytes:
    """Read a file from its beginning, at most so many bytes of it.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read, or is not a regular file: a pipe, a device, a folder or a link.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "the path is not a regular file; remove it", str(file))
        with open(descriptor, "rb", closefd=False) as opened:
            return opened.read(most)
    finally:
        os.close(descriptor)
