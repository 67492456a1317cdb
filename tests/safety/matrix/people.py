"""Real processes in real cgroups: those that may be ended, and those that must not notice anything.

Who must not be touched blocks every signal: what was sent to it stays pending, and the kernel says so.
"""

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PROGRAM: Final = ("/bin/sleep", ("sleep", "7200"))
"""Longer than all runs together take: who ends by himself counts as harmed."""
EVERY_SIGNAL: Final = frozenset(signal.Signals)


@dataclass
class Group:
    """One container: its cgroup, and whose it is."""

    mount: Path
    pod_uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    container_id: str = field(default_factory=lambda: uuid.uuid4().hex * 2)
    pids: list[int] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.mount / "kubepods" / "besteffort" / f"pod{self.pod_uid}" / self.container_id

    def make(self) -> "Group":
        self.path.mkdir(parents=True)
        return self

    def spawn(self, blocked: frozenset[signal.Signals] = frozenset()) -> int:
        """Start a process inside that blocks those signals."""
        pid = spawn(blocked)
        (self.path / "cgroup.procs").write_text(str(pid))
        self.pids.append(pid)
        return pid

    def end(self) -> None:
        """End everybody inside, and the cgroup."""
        for pid in self.pids:
            end(pid)
        self.pids.clear()
        for folder in (self.path, self.path.parent):
            _remove(folder)


def _remove(folder: Path) -> None:
    """A cgroup whose last process has just ended may be busy for a moment."""
    for _ in range(200):
        with suppress(FileNotFoundError):
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.005)
                continue
        return


def spawn(blocked: frozenset[signal.Signals] = frozenset()) -> int:
    return os.posix_spawn(*PROGRAM, {}, setsigmask=list(blocked))


def end(pid: int) -> None:
    """End a child of ours and reap it; one that was reaped before is passed over."""
    with suppress(ProcessLookupError, ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def unharmed(pid: int) -> bool:
    """Whether a process that blocks every signal lives and was sent none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    alive = not fields["State"].startswith(("Z", "X"))
    return alive and int(fields["SigPnd"], 16) == 0 and int(fields["ShdPnd"], 16) == 0


@dataclass
class Bed:
    """The neighbours that all runs of a worker have in common."""

    mount: Path
    folder: Path
    neighbour: Group
    stranger: Group
    server: int

    def sentinels(self) -> list[int]:
        return [*self.neighbour.pids, *self.stranger.pids, self.server]


@contextmanager
def bed(mount: Path, folder: Path) -> Iterator[Bed]:
    """Lay out a neighbour with a quota, a stranger without one, and a process of the node like MPS's server."""
    neighbour, stranger = Group(mount).make(), Group(mount).make()
    try:
        for group in (neighbour, neighbour, stranger):
            group.spawn(EVERY_SIGNAL)
        server = spawn(EVERY_SIGNAL)
        try:
            yield Bed(mount, folder, neighbour, stranger, server)
        finally:
            end(server)
    finally:
        neighbour.end()
        stranger.end()
