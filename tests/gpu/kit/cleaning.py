"""Nothing of an experiment outlives it: its processes are ended by pid, deepest first, whoever they belong to by now.

The runner is the subreaper of everything it starts, so that what gave itself a session of its own (MPS daemons do) is
still found below it when its parent is gone.
"""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36
TERM_S: Final = 5.0
KILL_S: Final = 10.0
POLL: Final = 0.02


_spared: set[int] = set()
"""Children from before: not ours to end, nor to bury."""


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs; those there are already stay untouched."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _spared.update(_children(os.getpid(), _parents()))


def descendants() -> list[int]:
    """Pids below us, parents before children; corpses count until they are buried."""
    parents = _parents()
    found = [pid for pid in _children(os.getpid(), parents) if pid not in _spared]
    for pid in found:
        found.extend(_children(pid, parents))
    return found


def end_all() -> list[int]:
    """End every descendant, politely and then not; returns those that were still alive when asked to leave."""
    reap()
    left = descendants()
    for number, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        for pid in reversed(descendants()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if _gone(seconds):
            break
    return left


def reap() -> None:
    """Bury the children that have ended."""
    for pid in _children(os.getpid(), _parents()):
        if pid not in _spared:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _gone(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reap()
        if not descendants():
            return True
        time.sleep(POLL)
    return False


def _children(pid: int, parents: dict[int, int]) -> list[int]:
    return [child for child, parent in parents.items() if parent == pid]


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                found[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return found
