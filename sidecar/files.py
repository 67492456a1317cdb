"""Reads the status file and our own memory, without following links, waiting for pipes or reading without end."""

import os
import stat
from typing import Final

PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def read(file: str, limit: int) -> bytes | None:
    """Return the content of a regular file of at most ``limit`` bytes; ``None`` for anything else."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            return None
        data = os.read(descriptor, limit + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data if len(data) <= limit else None


def rss_bytes() -> int:
    """Return this process's resident memory; 0 where /proc is missing."""
    fields = (read("/proc/self/statm", 4096) or b"").split()
    return int(fields[1]) * PAGE if len(fields) > 1 else 0
