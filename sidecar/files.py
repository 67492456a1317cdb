"""Reads the status file and our own memory, without following links, waiting for pipes or reading without end."""

import os
from typing import Final

from gpushare.files import read_regular_file

PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def read(file: str, limit: int) -> bytes | None:
    """Return the content of a regular file of at most ``limit`` bytes; ``None`` for anything else."""
    try:
        data = read_regular_file(file, limit + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= limit else None


def rss_bytes() -> int:
    """Return this process's resident memory; 0 where /proc is missing."""
    fields = (read("/proc/self/statm", 4096) or b"").split()
    return int(fields[1]) * PAGE if len(fields) > 1 else 0
