"""Memory limits of cgroups as the simulated driver keeps them, for tenants that hold memory through Python.

``sim.c`` writes and reads the same files: one per GPU and cgroup, named by a hash of the path from the kubelet's own
group on, because what leads there depends on who looks.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

NO_LIMIT: Final = 2**64 - 1
MIB: Final = 1024 * 1024
PODS: Final = "/kubepods"
_BASIS, _PRIME = 14695981039346656037, 1099511628211


def left(folder: Path, gpu: str, pid: int, memory: Iterable[tuple[int, int]]) -> float:
    """MiB that the limits of a process's cgroup, and of those above it, leave; infinity: there is no limit.

    Args:
        folder: the machine's state folder.
        gpu: UUID.
        pid: who wants to allocate.
        memory: (pid, MiB) of everybody who holds memory of that GPU.
    """
    if "cgroup_limits_bind=0" in _text(folder / "world").split():
        return math.inf
    limits = {group: mib for group in _upwards(_group(pid)) if (mib := hard_mib(folder, gpu, group)) is not None}
    rows = [(f"{_group(other)}/", mib) for other, mib in memory] if limits else []
    used = {group: sum(mib for path, mib in rows if path.startswith(f"{group}/")) for group in limits}
    return min((max(0, mib - used[group]) for group, mib in limits.items()), default=math.inf)


def hard_mib(folder: Path, gpu: str, group: str) -> int | None:
    """The hard limit that was set for one cgroup."""
    row = dict(part.split("=", 1) for part in _text(folder / "limits" / _name(gpu, group)).strip().split("\t") if part)
    hard = int(row.get("hard", NO_LIMIT))
    return None if hard == NO_LIMIT else hard // MIB


def _name(gpu: str, group: str) -> str:
    digest = _BASIS
    for byte in group.encode():
        digest = (digest ^ byte) * _PRIME % 2**64
    return f"{gpu:.64}-{digest:016x}"


def _group(pid: int) -> str:
    """The path of its pod in whichever hierarchy names one; empty where none does."""
    paths = (line.split(":", 2)[-1] for line in _text(Path(f"/proc/{pid}/cgroup")).splitlines())
    return next((path[path.index(PODS) :] for path in paths if PODS in path), "")


def _upwards(group: str) -> Iterator[str]:
    while group.startswith(PODS):
        yield group
        group = group.rpartition("/")[0]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
