"""The control groups a node lives in: made for it, the same path in every hierarchy, ended and removed with all inside.

Version 1 has one hierarchy for each controller, version 2 a single one, hybrid machines both; whatever
``/proc/self/mountinfo`` shows is used.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.testbed.cluster.errors import BedError

MOUNTINFO: Final = Path("/proc/self/mountinfo")
PROCS: Final = "cgroup.procs"
LEAF: Final = "system"
"""Where the node's own programs are: version 2 allows no processes beside child groups."""
POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted hierarchy: ``options`` as mount wants them (``memory``, ``none,name=systemd``; empty for version 2)."""

    where: Path
    options: str

    @property
    def unified(self) -> bool:
        """Whether it is version 2."""
        return not self.options


def hierarchies(mountinfo: str | None = None) -> list[Hierarchy]:
    """Every hierarchy mounted whole on this machine.

    Raises:
        BedError: there is none.
    """
    lines = (MOUNTINFO.read_text() if mountinfo is None else mountinfo).splitlines()
    found = {each.where: each for line in lines if (each := _hierarchy(line)) is not None}
    if not found:
        raise BedError("no cgroup hierarchy is mounted under /sys/fs/cgroup: a node needs one")
    return list(found.values())


def create(name: str, mounted: list[Hierarchy]) -> None:
    """Make the group ``name`` and its leaf everywhere. Raises BedError where this may not be done here."""
    for each in mounted:
        try:
            _create(each, name)
        except OSError as error:
            raise BedError(f"control group {each.where / name} cannot be made: {error}. A node needs root") from error


def procs_files(name: str, mounted: list[Hierarchy]) -> list[Path]:
    """Write a pid into each of these to move a process into the group's leaf."""
    return [each.where / name / LEAF / PROCS for each in mounted]


def pids(name: str, mounted: list[Hierarchy]) -> set[int]:
    """Every process in the group or below."""
    return {pid for each in mounted for folder in _folders(each.where / name) for pid in _pids(folder)}


def end(name: str, mounted: list[Hierarchy], patience: float = 15.0) -> None:
    """Kill everything in the group, then remove it. Raises BedError when something stays.

    A frozen process of version 1 takes no signal before it is thawed.
    """
    deadline = time.monotonic() + patience
    while left := pids(name, mounted):
        for each in mounted:
            _thaw(each.where / name)
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BedError(f"processes {sorted(left)} of control group {name} do not end")
        time.sleep(POLL_SECONDS)
    for each in mounted:
        _remove(each.where / name, deadline)


def mount_commands(mounted: Sequence[Hierarchy]) -> list[str]:
    """Shell commands for a new cgroup namespace: seen from it the own group is the root, as on a machine of its own."""
    top = Path("/sys/fs/cgroup")
    pure = [each for each in mounted if each.where == top]
    lines = [] if pure else [f"mount -t tmpfs -o mode=755 tmpfs {top}"]
    for each in pure or mounted:
        how = "-t cgroup2 cgroup2" if each.unified else f"-t cgroup -o {each.options} cgroup"
        lines.append(f"mkdir -p {each.where}; mount {how} {each.where}")
    return lines


def _hierarchy(line: str) -> Hierarchy | None:
    left, _, right = line.partition(" - ")
    mount, (kind, _, options) = left.split(), right.split(" ", 2)
    if kind not in {"cgroup", "cgroup2"} or not mount[4].startswith("/sys/fs/cgroup"):
        return None
    if kind == "cgroup2":
        return Hierarchy(Path(mount[4]), "")
    names = [each for each in options.split(",") if each.startswith("name=")]
    controllers = [each for each in options.split(",") if each in _controllers()]
    return Hierarchy(Path(mount[4]), ",".join(controllers or ["none", *names]))


def _controllers() -> set[str]:
    return {line.split()[0] for line in Path("/proc/cgroups").read_text().splitlines() if not line.startswith("#")}


def _create(each: Hierarchy, name: str) -> None:
    if each.unified:
        # Not in the group itself: its first process has to be in there while its namespace is made.
        _delegate(each.where)
    for folder in (each.where / name, each.where / name / LEAF):
        folder.mkdir(exist_ok=True)
        for needed in ("cpuset.cpus", "cpuset.mems"):
            # Version 1: a process may enter a group only when these are set; a new one has none.
            if not each.unified and (folder / needed).exists() and not (folder / needed).read_text().strip():
                (folder / needed).write_text((folder.parent / needed).read_text())


def _delegate(parent: Path) -> None:
    """Hand every controller down; one that cannot be is the kubelet's to complain about."""
    for controller in (parent / "cgroup.controllers").read_text().split():
        with suppress(OSError):
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")


def _folders(top: Path) -> Iterator[Path]:
    """Deepest first."""
    for folder, _, _ in os.walk(top, topdown=False):
        yield Path(folder)


def _pids(folder: Path) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in (folder / PROCS).read_text().split()]
    return []


def _thaw(top: Path) -> None:
    for folder in _folders(top):
        for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with suppress(OSError):
                if (folder / file).exists():
                    (folder / file).write_text(word)


def _remove(top: Path, deadline: float) -> None:
    """A group stays busy for a moment after its last process has gone."""
    while top.exists():
        for folder in _folders(top):
            with suppress(OSError):
                folder.rmdir()
        if top.exists() and time.monotonic() > deadline:
            raise BedError(f"control group {top} cannot be removed")
        if top.exists():
            time.sleep(POLL_SECONDS)
