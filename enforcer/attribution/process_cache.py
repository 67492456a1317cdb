"""The identities of processes, kept between samples: to see that one is unchanged costs less than to read it again.

Each process is pinned by a pidfd and by its open ``/proc/<pid>/cgroup``. Either is of the process that had the pid when
it was opened and never of the next. So nothing is cached by pid alone: what was found of a process counts for as long
as it lives, its cgroup is called as it was, and that is still the same directory. Of a leader that ends or has ended
cgroup v1 says "/": what was found counts on, because a process cannot leave its container.
"""

import os
import resource
import select
import threading
from dataclasses import dataclass
from typing import Final, Self

from enforcer.attribution.cgroup import Identity
from enforcer.runtime.clock import CLOCK, Clock

PAGE: Final = 4096
MOST: Final = 512
"""Processes in the cache: MPS serves 60 clients of a GPU, so those of eight fit. A tenant can have any number."""
SHARE: Final = 8
"""... and no more than this part of the files that we may have open: there are two for each."""
V2_PARTS: Final = 2
"""One line and what is behind its end: of cgroup v2 alone, where it stays as it was."""
LINGER: Final = 30.0
"""Seconds after which one that nobody asked about is removed."""


@dataclass(frozen=True, slots=True)
class CachedIdentity:
    """What was found of a process: its identity, the text of its cgroup file, and its cgroup's directory and inode."""

    identity: Identity
    cgroup_text: bytes
    folder: str
    inode: int


@dataclass(slots=True)
class CachedProcess:
    """One process: its pidfd, its cgroup file, the poll of its end, and what was found of it.

    ``asked`` is when somebody asked about it last.
    """

    pidfd: int
    cgroup: int
    end: select.poll
    found: CachedIdentity | None = None
    asked: float = 0.0

    @classmethod
    def open(cls, pid: int) -> Self | None:
        """Pin whatever has this pid now; ``None`` where nothing has, or there is no room for more files."""
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
        return cls(pidfd, cgroup, poll)

    def unchanged_since(self, found: CachedIdentity) -> bool:
        """Whether it lives, its cgroup file says no other cgroup, and that cgroup is still the same directory."""
        try:
            # Whether it lives comes last: all that was read before is its own then. What is longer than a page differs.
            return (
                _says_no_other(os.pread(self.cgroup, PAGE, 0), found.cgroup_text)
                and os.stat(found.folder).st_ino == found.inode  # noqa: PTH116 - a path object costs more than the call
                and not self.end.poll(0)
            )
        except OSError:
            return False

    def close(self) -> None:
        """Unpin it."""
        os.close(self.pidfd)
        os.close(self.cgroup)


class ProcessCache:
    """The processes in the cache, by pid. Safe to use from several threads."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock, self._most = clock, _room()
        self._lock = threading.Lock()
        self._entries: dict[int, CachedProcess] = {}
        self._cleaned = clock.monotonic()

    def lookup(self, pid: int) -> Identity | None:
        """Return who has a pid, where that one is in the cache and unchanged; ``None``: it has to be read."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._cleaned > LINGER:
                self._remove_unused(now)
            entry = self._entries.get(pid)
            if entry is None or entry.found is None:
                return None
            entry.asked = now
            if entry.unchanged_since(entry.found):
                return entry.found.identity
            self._entries.pop(pid).close()
            return None

    @property
    def full(self) -> bool:
        """Whether no other process can be added."""
        return len(self._entries) >= self._most

    def store(self, entry: CachedProcess, found: CachedIdentity | None) -> None:
        """Add a process, where what was found is still so; else close it.

        Args:
            entry: opened before anything was found: what was, was then of this process, if that still lives.
            found: what was; ``None``: nothing.
        """
        if found is not None and entry.unchanged_since(found):
            entry.found, entry.asked = found, self._clock.monotonic()
            with self._lock:
                if not self.full and found.identity.pid not in self._entries:
                    self._entries[found.identity.pid] = entry
                    return
        entry.close()

    def _remove_unused(self, now: float) -> None:
        self._cleaned = now
        for pid in [pid for pid, entry in self._entries.items() if now - entry.asked > LINGER]:
            self._entries.pop(pid).close()


def _says_no_other(text: bytes, before: bytes) -> bool:
    """Whether each line is as it was, or says "/", as cgroup v1 does once a leader has begun to end."""
    if text == before:
        return True
    now, was = text.split(b"\n"), before.split(b"\n")
    if not len(now) == len(was) > V2_PARTS:
        return False
    return all(one == other or one == other.partition(b":/")[0] + b":/" for one, other in zip(now, was, strict=True))


def _room() -> int:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if most == resource.RLIM_INFINITY else min(MOST, most // SHARE)
