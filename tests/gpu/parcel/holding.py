"""The folder and the control group of one run, and how all of it ends: also when the run itself was killed.

A guardian in a session of its own waits for the end of the run's first process and then cleans up. Should both be
killed, the next start does: every run's folder says which process it belongs to.
"""

import json
import os
import secrets
import select
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from tests.gpu.parcel.layout import ROOT
from tests.testbed.cluster import cgroups
from tests.testbed.cluster.processes import start_time

STATE: Final = "run.json"
SUBTREE: Final = Path("/sys/fs/cgroup/cgroup.subtree_control")
SYSCTLS: Final = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)  # fmt: skip
"""What a kubelet sets on its machine."""
PROC_SYS: Final = Path("/proc/sys")
KMSG: Final = Path("/dev/kmsg")
KMSG_DEVICE: Final = os.makedev(1, 11)
"""Without it no kubelet starts; a sandbox may have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One run's folder and control group.

    ``controllers`` are those that were handed down before (cgroup v2), ``sysctls`` the values of ``SYSCTLS`` before,
    ``made`` the device files that are there for this run alone.
    """

    folder: Path
    cgroup: str
    owner: int
    started: int
    controllers: str
    sysctls: dict[str, str]
    made: list[str]

    @classmethod
    def take(cls, home: Path) -> Self:
        """Make both, noted before they are made, and start the guardian."""
        name = f"gpu-share-parcel-{secrets.token_hex(3)}"
        owner = os.getpid()
        started = start_time(owner) or 0
        held = cls(
            folder=home / f"run-{owner}", cgroup=name, owner=owner, started=started,
            controllers=SUBTREE.read_text() if SUBTREE.is_file() else "",
            sysctls={each: (PROC_SYS / each).read_text() for each in SYSCTLS if (PROC_SYS / each).is_file()},
            made=[] if KMSG.exists() else [str(KMSG)],
        )  # fmt: skip
        held.folder.mkdir(parents=True)
        (held.folder / STATE).write_text(json.dumps(held._state()))
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.parcel.holding", str(held.folder)], cwd=ROOT, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for each in held.made:
            os.mknod(each, 0o600 | stat.S_IFCHR, KMSG_DEVICE)
        cgroups.create(name, cgroups.hierarchies())
        return held

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What stands in a run's folder. Raises ``OSError``, ``ValueError``, ``KeyError``."""
        state = json.loads((folder / STATE).read_text())
        return cls(folder=folder, **state)

    @property
    def alive(self) -> bool:
        """Whether the run's first process still runs."""
        return start_time(self.owner) == self.started

    def end(self) -> None:
        """End everything in the group, remove group and folder; mounts went with the last process."""
        mounted = cgroups.hierarchies()
        cgroups.end(self.cgroup, mounted)
        self._take_back()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take_back(self) -> None:
        for each in self.made:
            Path(each).unlink(missing_ok=True)
        for name, value in self.sysctls.items():
            with suppress(OSError):
                if (PROC_SYS / name).read_text() != value:
                    (PROC_SYS / name).write_text(value)
        now = SUBTREE.read_text().split() if SUBTREE.is_file() else []
        for added in set(now) - set(self.controllers.split()):
            with suppress(OSError):  # somebody else uses it meanwhile
                SUBTREE.write_text(f"-{added}")

    def _state(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "folder"}


def sweep(home: Path) -> None:
    """End what runs have left whose first process and guardian are gone."""
    for folder in home.glob("run-*"):
        try:
            held = Holding.load(folder)
        except (OSError, ValueError, KeyError):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        if not held.alive:
            held.end()


def guard(folder: Path) -> None:
    """Wait for the end of a run's first process, then clean up."""
    held = Holding.load(folder)
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(held.owner)
        if held.alive:
            select.select([handle], [], [])
    if folder.is_dir():
        held.end()


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
