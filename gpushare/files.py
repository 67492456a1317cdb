"""Read files although somebody may have put a pipe or a link in their place, and make folders durable."""

import errno
import os
import stat


def read_regular_file(file: str | os.PathLike[str], most: int) -> bytes:
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


def sync(folder: str | os.PathLike[str]) -> None:
    """Wait until what was made, renamed and removed in a folder is durable. Raises ``OSError``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
