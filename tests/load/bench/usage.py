"""CPU that processes use, and the one core that some of them are held to."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CPUCLOCK_SCHED: Final = 2
"""The kernel's number of the clock that counts what a process ran, in nanoseconds."""


def cpu_seconds(pid: int) -> float:
    """Of all its threads, those that have ended too, to the nanosecond: see clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def children(pid: int) -> list[int]:
    """Return the processes that the threads of one have started."""
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


@contextmanager
def on_one_core() -> Iterator[None]:
    """Hold what this thread starts meanwhile to one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
