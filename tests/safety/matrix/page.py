"""What the supervisor and the enforcer under test share: switches of faults, and what NVML lists. Survives a kill."""

import mmap
from enum import IntEnum
from typing import Final

ROWS: Final = 32
_FIRED: Final = 64
_WALL: Final = 16
_TABLE: Final = 32
"""Positions: bytes of switches, then in eights the wall clock's offset and the table."""


class Switch(IntEnum):
    """Faults that the enforcer's surroundings play while they are on."""

    NVML_ERROR = 0
    NVML_LOST = 1
    NVML_HANG = 2
    NVML_CRASH = 3
    NVML_INSANE = 4
    MPS_BLOCKED = 5
    MPS_DEAD = 6
    MPS_LYING = 7
    MPS_REFUSES = 8
    EIO = 9
    ENOSPC = 10
    EROFS = 11
    SLOW_SYNC = 12
    ENOMEM = 13


class Page:
    """Shared memory of a supervisor and the enforcers it forks. Each write is of one word, so none is seen by half."""

    def __init__(self) -> None:
        self._bytes = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._words = self._bytes.cast("Q")

    def switch(self, which: Switch, *, on: bool) -> None:
        self._bytes[which] = on

    def on(self, which: Switch) -> bool:
        return bool(self._bytes[which])

    @property
    def fired(self) -> bool:
        """Whether the moment has come."""
        return bool(self._bytes[_FIRED])

    def fire(self) -> None:
        self._bytes[_FIRED] = 1

    @property
    def wall(self) -> int:
        """Seconds by which somebody has set the wall clock."""
        return int(self._words[_WALL]) - (1 << 40)

    @wall.setter
    def wall(self, seconds: int) -> None:
        self._words[_WALL] = seconds + (1 << 40)

    def hold(self, pid: int, mib: int) -> None:
        """Let a process hold so much; 0: nothing."""
        rows = [self._words[_TABLE + n] for n in range(ROWS)]
        free = [n for n, word in enumerate(rows) if word >> 32 == pid] or [rows.index(0)]
        self._words[_TABLE + free[0]] = (pid << 32 | mib) if mib else 0

    def rows(self) -> list[tuple[int, int]]:
        """Who holds how many MiB."""
        words = [self._words[_TABLE + n] for n in range(ROWS)]
        return [(word >> 32, word & 0xFFFFFFFF) for word in words if word]
