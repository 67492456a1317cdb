"""Reads a process's environment, with care: it is the tenant's memory, and may lie on a disk that does not answer."""

import ctypes
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from enforcer.attribution.procfs import read_stat
from enforcer.limits.environ_limits import EnvironLimit, parse_environ

PATIENCE: Final = 1.0
"""Seconds for one process: reading its memory waits for whatever its pages wait for."""
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_STUCK: Final = 16
"""Reads of the whole node that never came back. Beyond that no environment of any process is read until one does:
limits that rest on them are ``Unknown`` meanwhile, and quotas are enforced as ever.
"""
_ENV_START, _ENV_END = 47, 48
"""Positions after the command name in ``/proc/<pid>/stat``: fields 50 and 51 of proc(5)."""


class EnvironReader:
    """Reads the limits in the environments of processes. For one thread.

    Args:
        proc: where procfs is mounted.
        patience: see ``PATIENCE``.
    """

    def __init__(self, proc: Path = Path("/proc"), patience: float = PATIENCE) -> None:
        self._proc, self._patience = proc, patience
        self._stuck: dict[int, threading.Thread] = {}

    def limit_of(self, pid: int, start: int) -> EnvironLimit | None:
        """Say it of one process; ``None`` where it has ended, is another by now, or cannot be read."""
        self._stuck = {stuck: thread for stuck, thread in self._stuck.items() if thread.is_alive()}
        if pid in self._stuck or len(self._stuck) >= MAX_STUCK:
            return None
        found: list[bytes] = []
        thread = threading.Thread(target=self._read, args=(found, pid), name="environ", daemon=True)
        thread.start()
        thread.join(self._patience)
        if thread.is_alive():
            self._stuck[pid] = thread
        stat = read_stat(self._proc / str(pid) / "stat")
        return parse_environ(found[0]) if found and stat is not None and stat.start == start else None

    def _read(self, found: list[bytes], pid: int) -> None:
        """Read; a text that is cut off, or empty as of a process that is ending, says nothing."""
        folder = self._proc / str(pid)
        with suppress(OSError, ValueError, IndexError):
            try:
                with (folder / "environ").open("rb") as file:
                    text = file.read(MAX_BYTES + 1)
            except PermissionError:
                text = from_memory(pid, (folder / "stat").read_bytes())
            if 0 < len(text) <= MAX_BYTES:
                found.append(text)


def from_memory(pid: int, stat: bytes) -> bytes:
    """Read an environment where it lies in its process's memory.

    That takes SYS_PTRACE alone; the file of procfs is its owner's, and opening it would take the right to read every
    file of the node besides.

    Raises:
        OSError: the kernel does not let us, or there is none.
    """
    fields = stat.rpartition(b")")[2].split()
    start, size = int(fields[_ENV_START]), int(fields[_ENV_END]) - int(fields[_ENV_START])
    if not start or not 0 < size <= MAX_BYTES:
        raise ProcessLookupError(f"the kernel shows no environment of process {pid}")
    into = ctypes.create_string_buffer(size)
    local = _Vector(ctypes.cast(into, ctypes.c_void_p), size)
    remote = _Vector(ctypes.c_void_p(start), size)
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    read.restype = ctypes.c_ssize_t
    got = read(pid, ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1), ctypes.c_ulong(0))
    if got != size:
        raise OSError(ctypes.get_errno(), f"the enforcer cannot read the memory of process {pid}")
    return into.raw


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
