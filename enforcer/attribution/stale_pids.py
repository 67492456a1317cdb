"""What NVML lists under the pid of a process that has ended, for as long as it lists it. Pure.

The driver keeps memory for as long as somebody has its files open: a child that inherited them keeps that of a parent
which has ended, under the parent's pid. A pid comes round again; the next process with it uses none of that memory.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from enforcer.attribution.cgroup import Identity
from enforcer.nvml.types import GpuProcess


@dataclass(frozen=True, slots=True)
class PidUsage:
    """One pid in NVML's list: MiB, how many of them are an earlier process's, and who has it.

    ``start`` is that process's, ``None`` where it has ended.
    """

    used_mib: int
    stale_mib: int
    start: int | None

    @property
    def own_mib(self) -> int:
        """What the process that has the pid now holds itself."""
        return self.used_mib - self.stale_mib


Known = Mapping[int, PidUsage]
"""The list as it was, by pid."""


def update(before: Known, rows: Iterable[tuple[GpuProcess, Identity | None]]) -> dict[int, PidUsage]:
    """Take in one list: what is no longer in it has been given back.

    Args:
        before: what was known; of a list that could not be read since, ``lasting`` of it.
        rows: each with who has the pid now; ``None``: it has ended.
    """
    return {process.pid: _listed(before.get(process.pid), process.used_mib, who) for process, who in rows}


def carry_over(known: Known) -> dict[int, PidUsage]:
    """What stays known over a time in which nobody looked: who had ended, not who lived."""
    return {pid: each for pid, each in known.items() if each.start is None or each.stale_mib}


def _listed(was: PidUsage | None, used: int, who: Identity | None) -> PidUsage:
    if who is None:
        return PidUsage(used, used, None)
    if was is None:
        return PidUsage(used, 0, who.start)
    left = was.stale_mib if was.start == who.start else was.used_mib
    return PidUsage(used, min(left, used), who.start)
