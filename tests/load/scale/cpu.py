"""Processor time by program: unlike durations it says nearly the same on a busy machine as on a quiet one."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.testbed.cluster.processes import Process

SESSION, USER, SYSTEM, USER_OF_DEAD, SYSTEM_OF_DEAD = 3, 11, 12, 13, 14
"""Fields of /proc/<pid>/stat, counted behind the command's name."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


def spent(processes: Iterable[Process]) -> Counter[str]:
    """Seconds that programs have spent until now, with their children; numbered replicas count as one program."""
    of_session: Counter[int] = Counter()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            times = (
                (USER, SYSTEM, USER_OF_DEAD, SYSTEM_OF_DEAD) if fields[SESSION] == stat.parent.name else (USER, SYSTEM)
            )
            of_session[int(fields[SESSION])] += sum(int(fields[each]) for each in times)
    found: Counter[str] = Counter()
    for process in processes:
        found[process.name.rstrip("-0123456789")] += of_session[process.pid] / TICKS  # type: ignore[assignment]
    return found


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each program has spent from one moment to the other, most first."""
    found = {name: seconds - before.get(name, 0) for name, seconds in after.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1]))
