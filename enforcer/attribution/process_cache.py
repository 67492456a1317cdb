"""Processes that are held on to between looks: to see that one is as it was costs less than to make it out anew.

Each is held by a pidfd and by its open ``/proc/<pid>/cgroup``. Either is of the process that had the pid when it was
opened and never of the next. So nothing is known by its pid here: what was found of a process counts for as long as
it lives, its cgroup is called as it was, and that is still the same directory.
"""

import os
import resource
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from enforcer.attribution.cgroup import Identity

PAGE: Final = 4096
MOST: Final = 256
"""Processes held on to: those on a node's GPUs are far fewer, and a tenant's any number."""
SHARE: Final = 8
"""... and no more than this part of the files that we may have open: there are two for each."""
LINGER: Final = 30.0
"""Seconds after which one that nobody asked about is let go of."""


@dataclass(frozen=True, slots=True)
class CachedIdentity:
    """What was found of a process: who it is, what its cgroup file said, and its cgroup's directory with its inode."""

    identity: Identity
    said: bytes
    folder: str
    inode: int


@dataclass(slots=True)
class PinnedProcess:
    """One process: its pidfd, its cgroup file, whether it has ended (answered at once), and what was found of it.

    ``asked`` is when somebody asked about it last.
    """

    pidfd: int
    cgroup: int
    ended: Callable[[int], list[tuple[int, int]]]
    found: CachedIdentity | None = None
    asked: float = 0.0

    @classmethod
    def on(cls, pid: int) -> Self | None:
        """Take hold of whatever has this pid now; ``None`` where nothing has, or there is no room for more files."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        try:
            cgroup = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(pidfd)
            return None
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return cls(pidfd, cgroup, poll.poll)

    def is_as(self, found: CachedIdentity) -> bool:
        """Whether it lives, its cgroup file says what it did, and that cgroup is still the same directory."""
        try:
            # Whether it lives comes last: all that was read before is its own then. What is longer than a page differs.
            return (
                os.pread(self.cgroup, PAGE, 0) == found.said
                and os.stat(found.folder).st_ino == found.inode  # noqa: PTH116 - a path object costs more than the call
                and not self.ended(0)
            )
        except OSError:
            return False

    def close(self) -> None:
        """Let go."""
        os.close(self.pidfd)
        os.close(self.cgroup)


class ProcessCache:
    """All that are held on to, by pid. Safe to use from several threads.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._most = clock, _room()
        self._lock = threading.Lock()
        self._holds: dict[int, PinnedProcess] = {}
        self._tidied = clock()

    def lookup(self, pid: int) -> Identity | None:
        """Return who has a pid, where that is one we hold and all is as it was; ``None``: it has to be made out."""
        with self._lock:
            now = self._clock()
            if now - self._tidied > LINGER:
                self._tidy(now)
            hold = self._holds.get(pid)
            if hold is None or hold.found is None:
                return None
            hold.asked = now
            if hold.is_as(hold.found):
                return hold.found.identity
            self._holds.pop(pid).close()
            return None

    @property
    def full(self) -> bool:
        """Whether no other can be held."""
        return len(self._holds) >= self._most

    def keep(self, hold: PinnedProcess, found: CachedIdentity | None) -> None:
        """Keep hold of a process, where what was found is still so; else let go.

        Args:
            hold: taken before anything was found: what was, was then of this process, if that still lives.
            found: what was; ``None``: nothing.
        """
        if found is not None and hold.is_as(found):
            hold.found, hold.asked = found, self._clock()
            with self._lock:
                if not self.full and found.identity.pid not in self._holds:
                    self._holds[found.identity.pid] = hold
                    return
        hold.close()

    def _tidy(self, now: float) -> None:
        self._tidied = now
        for pid in [pid for pid, hold in self._holds.items() if now - hold.asked > LINGER]:
            self._holds.pop(pid).close()


def _room() -> int:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if most == resource.RLIM_INFINITY else min(MOST, most // SHARE)
