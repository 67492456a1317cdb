"""What happens to the state disk and to the clock of that machine before its power is cut."""

import fcntl
import os
import random
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

SHUT_DOWN: Final = 0x8004587D
"""ioctl of ext4 and xfs (``_IOR('X', 125, __u32)``) after which each write fails with EIO until the next mount."""
WITHOUT_JOURNAL: Final = struct.pack("I", 2)
HOUR: Final = 3600.0
FILLER: Final = "filler"
SMALLEST: Final = 4096
KINDS: Final = ("full disk", "clock", "I/O errors")
FULL, CLOCK, ERRORS = KINDS


def beset(mount: Path, chance: random.Random, tell: Callable[..., None]) -> None:
    """Fill the disk and set the clock now and then, for a moment each; at last perhaps the disk fails for good."""
    (mount / FILLER).unlink(missing_ok=True)
    for _ in range(chance.randrange(6)):
        time.sleep(chance.uniform(0.2, 1.0))
        kind = chance.choice((FULL, CLOCK))
        tell("trouble", kind=kind)
        (_full if kind == FULL else _clock)(mount, chance)
        tell("lifted", kind=kind)
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, 1.0))
        tell("trouble", kind=ERRORS)
        _fail(mount)


def _full(mount: Path, chance: random.Random) -> None:
    file = os.open(mount / FILLER, os.O_WRONLY | os.O_CREAT)
    try:
        size, at = 1 << 28, 0
        while size >= SMALLEST:
            try:
                os.posix_fallocate(file, at, size)
                at += size
            except OSError:
                size //= 2
        time.sleep(chance.uniform(0.2, 1.5))
    finally:
        os.close(file)
        with suppress(FileNotFoundError):
            (mount / FILLER).unlink()


def _clock(_: Path, chance: random.Random) -> None:
    hours = chance.choice((-30, -2, 2, 30))
    time.clock_settime(time.CLOCK_REALTIME, time.time() + hours * HOUR)
    time.sleep(chance.uniform(0.2, 1.0))
    if chance.random() < 0.5:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - hours * HOUR)


def _fail(mount: Path) -> None:
    folder = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, SHUT_DOWN, WITHOUT_JOURNAL)
    finally:
        os.close(folder)
