"""Replace our own files atomically; read them although a tenant may have put a pipe or a link in their place."""

import errno
import os
import stat
from pathlib import Path


def replace(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put a file in place whole: a reader sees the old or the new one, also after a crash if it is to be durable.

    Raises:
        OSError: it could not be written.
    """
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
