"""Reads a process's environment, with care: it is the tenant's memory, and may lie on a disk that does not answer."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from enforcer.proc import read_stat
from enforcer.proof.said import Said, said

PATIENCE: Final = 1.0
"""Seconds for one process: reading its memory waits for whatever its pages wait for."""
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_STUCK: Final = 16
"""Reads that never came back; beyond that no environment is read until one does."""


class Environments:
    """Says what processes said of their limits. For one thread.

    Args:
        proc: where procfs is mounted.
        patience: see ``PATIENCE``.
    """

    def __init__(self, proc: Path = Path("/proc"), patience: float = PATIENCE) -> None:
        self._proc, self._patience = proc, patience
        self._stuck: dict[int, threading.Thread] = {}

    def said(self, pid: int, start: int) -> Said | None:
        """Say it of one process; ``None`` where it has ended, is another by now, or cannot be read."""
        self._stuck = {stuck: thread for stuck, thread in self._stuck.items() if thread.is_alive()}
        if pid in self._stuck or len(self._stuck) >= MAX_STUCK:
            return None
        found: list[bytes] = []
        thread = threading.Thread(target=_into, args=(found, self._read(pid)), name="environ", daemon=True)
        thread.start()
        thread.join(self._patience)
        if thread.is_alive():
            self._stuck[pid] = thread
        stat = read_stat(self._proc / str(pid) / "stat")
        return said(found[0]) if found and stat is not None and stat.start == start else None

    def _read(self, pid: int) -> Callable[[], bytes]:
        def read() -> bytes:
            with (self._proc / str(pid) / "environ").open("rb") as file:
                return file.read(MAX_BYTES + 1)

        return read


def _into(found: list[bytes], read: Callable[[], bytes]) -> None:
    """Read; a text that is cut off, or empty as of a process that is ending, says nothing."""
    try:
        text = read()
    except OSError:
        return
    if 0 < len(text) <= MAX_BYTES:
        found.append(text)
