"""Processes as the kernel shows them: who they are right now, and a handle that never comes to mean another one.

A pid comes round again, and so does a pid with its start time (ticks are 10 ms). A pidfd does not: it is opened first,
what it stands for is checked afterwards, and every signal goes through it.
"""

import os
import random
import select
import signal
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Self

from enforcer.attribution.cgroup import REMEMBERED, SHORT, Identity, container_cgroups, container_of
from enforcer.attribution.process_cache import CachedIdentity, CachedProcess, ProcessCache

INITIAL_PID_NAMESPACE: Final = 4026531836
"""The inode of the host's own pid namespace: ``PROC_PID_INIT_INO`` of the kernel."""
DEAD: Final = frozenset({"Z", "X", "x"})
PF_KTHREAD: Final = 0x00200000
PF_EXITING: Final = 0x00000004
"""Set before anything of a thread is given back. Cgroup v1 says "/" of such a thread (``proc_cgroup_show``)."""
TURNS: Final = 20
"""Times to look for a live thread of a process whose leader has ended: a tenant's may end as fast as we look."""
THREAD_SECONDS: Final = 0.05
"""For one such process. A tenant can have any number of threads that have ended, so each look takes them in an order of
its own: where one is too short, some next one finds the thread that lives."""
PAGE: Final = 4096
PROC: Final = "/proc"
_STATE, _FLAGS, _START = 0, 6, 19
"""Positions after the command name in ``/proc/<pid>/stat``: fields 3, 9 and 22 of proc(5)."""


def in_initial_pid_namespace(proc: Path = Path("/proc")) -> bool:
    """Tell whether the pids we see are the host's; in any other namespace NVML's pids mean somebody else."""
    return (proc / "self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE


@dataclass(frozen=True, slots=True)
class Stat:
    """What ``/proc/<pid>/stat`` says: state letter, start in ticks since boot, and whether it is a kernel thread.

    ``exiting``: it has begun to end.
    """

    state: str
    start: int
    kernel_thread: bool
    exiting: bool = False


class CgroupAttributor:
    """Attribute by cgroup, read again at each call. ``enforcer.attribution.process_cache`` caches it.

    Args:
        proc: where procfs is mounted; of another place than ``/proc`` all is read afresh.
        cgroup: where the host's cgroup file systems are mounted; only for inodes, and allowed to be absent.
    """

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        # Texts: hundreds of times a second, to make one of a path costs as much as to look.
        self._proc, self._cgroup = str(proc), str(cgroup)
        self._cache = ProcessCache() if self._proc == PROC else None

    def identify(self, pid: int) -> Identity | None:
        """Look at a process now; ``None`` when it has ended, also when only its corpse is left.

        ``None`` also of one that lives and does not show whose it is: see ``is_alive``.
        """
        cache = self._cache
        if cache is not None and (known := cache.lookup(pid)) is not None:
            return known
        identity, found = self._made_out(pid)
        if (
            cache is not None
            and found is not None
            and not cache.full
            and (entry := CachedProcess.open(pid)) is not None
        ):
            cache.store(entry, self._made_out(pid)[1])
        return identity

    def is_alive(self, pid: int) -> bool:
        """Tell whether a process has not ended, whatever /proc shows of it; true where the kernel cannot say."""
        return is_alive(pid)

    def _made_out(self, pid: int) -> tuple[Identity | None, CachedIdentity | None]:
        """Look at a process; and what tells later that it is as it was, for one in a container."""
        text = _text(f"{self._proc}/{pid}/cgroup")
        stat = read_stat(f"{self._proc}/{pid}/stat")  # afterwards: what has not begun to end now had not before
        if stat is not None and stat.exiting:
            text = self._text_of_threads(pid, stat, text)
        if stat is None or text is None:
            return None, None
        folder, inode = self._directory(text)
        identity = Identity(
            pid=pid, start=stat.start, owner=container_of(text), cgroup_inode=inode, kernel_thread=stat.kernel_thread
        )
        raw = text.encode("utf-8", "surrogateescape")
        return identity, None if inode is None else CachedIdentity(identity, raw, folder, inode)

    def _text_of_threads(self, pid: int, stat: Stat, own: str | None) -> str | None:
        """Return the cgroups of a process whose leader ends or has ended, by a thread that lives; ``None``: unknown.

        In cgroup v2 the leader's own file says what it did, also when the leader has ended.
        """
        named = own is not None and own.count("\n") == 1 and container_of(own) is not None
        if named and stat.state not in DEAD:
            return own
        folder, until = f"{self._proc}/{pid}/task", time.monotonic() + THREAD_SECONDS
        for _ in range(TURNS):
            threads = [name for name in _names(folder) if name != str(pid)]
            if named and threads:
                return own
            random.shuffle(threads)
            for name in threads:
                if (text := _living(f"{folder}/{name}")) is not None:
                    return text
                if time.monotonic() > until:
                    return None
            if not (threads or is_alive(pid)):
                return None
        return None

    def _directory(self, text: str) -> tuple[str, int | None]:
        """The container's own cgroup directory, and its inode: one made again has another."""
        for folder in _known_folders(text) if len(text) <= SHORT else _folders(text):
            path = f"{self._cgroup}/{folder}"
            try:
                # Hundreds a second: a path object costs more than the call.
                return path, os.stat(path).st_ino  # noqa: PTH116 - a path object costs more than the call
            except (OSError, ValueError):  # not mounted there, or a name no path can hold
                continue
        return "", None


def _folders(text: str) -> tuple[str, ...]:
    """Where a container's cgroup may be, from the mount: v1 under its controllers' names, v2 at the root or beside."""
    return tuple(
        f"{name}/{path}"
        for controllers, path in container_cgroups(text)
        for name in ([controllers.removeprefix("name=")] if controllers else ["", "unified"])
    )


_known_folders = lru_cache(maxsize=REMEMBERED)(_folders)


class PidHandle:
    """A pidfd: one process and never another. Close it, or use it as a context."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid, self._descriptor = pid, descriptor

    @classmethod
    def open(cls, pid: int) -> Self | None:
        """Pin whatever has this pid now; ``None`` where nothing has.

        Raises:
            OSError: the kernel cannot (too many open files).
        """
        try:
            return cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait up to so long for the process, with all its threads, to end; say whether it has."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def fileno(self) -> int:
        """The descriptor, for the kernel's other calls that take one."""
        return self._descriptor

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; false where the process has ended.

        Raises:
            PermissionError: we may not.
        """
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            return False
        return True

    def ignores(self, number: signal.Signals, proc: Path = Path("/proc")) -> bool:
        """Return whether the kernel keeps a signal from it: the first of a pid namespace gets only those it handles.

        Not so SIGKILL and SIGSTOP from outside.
        """
        caught = int(_status_line(self.pid, "SigCgt", proc) or "0", 16)
        return leads_namespace(self.pid, proc) and not caught >> (number - 1) & 1

    def duplicate(self) -> Self:
        """Return another pidfd of the same process. Raises ``OSError``: too many open files."""
        return type(self)(self.pid, os.dup(self._descriptor))

    def close(self) -> None:
        """Unpin it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def is_alive(pid: int) -> bool:
    """Tell whether a process has not ended, whatever /proc shows of it; true where the kernel cannot say."""
    try:
        handle = PidHandle.open(pid)
    except OSError:
        return True
    if handle is None:
        return False
    with handle:
        return not handle.ended()


def leads_namespace(pid: int, proc: Path = Path("/proc")) -> bool:
    """Tell whether a process is the first of its pid namespace: when it ends, the kernel kills all others in there.

    The host's own first process leads the host's; it is protected anyway.
    """
    return namespace_pids(pid, proc)[-1:] == (1,)


def namespace_pids(pid: int, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Its pid in each of its pid namespaces, from ours to its own; empty where it has ended."""
    return tuple(int(number) for number in _status_line(pid, "NSpid", proc).split())


def _status_line(pid: int, name: str, proc: Path) -> str:
    """One line of ``/proc/<pid>/status``. The command name in there is the tenant's, but has no line break."""
    lines = (_text(proc / str(pid) / "status") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "")


def read_stat(path: Path | str) -> Stat | None:
    """Read a ``stat`` file of a process or a thread; ``None`` where there is none any more.

    The command name in it is the tenant's: it may hold blanks, parentheses and newlines, so the fields are counted
    from the last parenthesis.
    """
    try:
        fields = _bytes(path).rpartition(b")")[2].split(None, _START + 1)
        state, flags = fields[_STATE].decode(), int(fields[_FLAGS])
        exiting = state in DEAD or bool(flags & PF_EXITING)
        return Stat(state, int(fields[_START]), bool(flags & PF_KTHREAD), exiting)
    except (OSError, IndexError, ValueError):
        return None


def _bytes(path: Path | str) -> bytes:
    # Hundreds of times a second: three calls of the kernel, where a file object makes seven.
    file, found = os.open(path, os.O_RDONLY | os.O_CLOEXEC), b""
    try:
        while len(part := os.read(file, PAGE)) == PAGE:  # shorter: there was no more
            found += part
        return found + part
    finally:
        os.close(file)


def _text(path: Path | str) -> str | None:
    try:
        return _bytes(path).decode("utf-8", "surrogateescape")
    except OSError:
        return None


def _living(thread: str) -> str | None:
    """The cgroups of a thread that has not begun to end; ``None`` of any other."""
    text = _text(f"{thread}/cgroup")
    found = read_stat(f"{thread}/stat")
    return None if found is None or found.exiting else text


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - a path object of each of thousands costs more than the call
    except OSError:
        return []
