"""Which files this process holds open."""

import os
from contextlib import suppress
from pathlib import Path


def path_of(descriptor: int) -> str:
    """Where a descriptor leads, as the kernel says it."""
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115


def held_below(folder: Path) -> int:
    """Count the descriptors that lead to a folder or below it; those of other tests' threads do not count."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # that of the listing itself has gone
            found.append(path_of(int(name)))
    return sum(path == str(folder) or path.startswith(f"{folder}/") for path in found)
