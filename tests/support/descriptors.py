"""Which files this process holds open."""

from contextlib import suppress
from pathlib import Path


def path_of(descriptor: int) -> str:
    """Where a descriptor leads, as the kernel says it."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def open_below(folder: Path) -> int:
    """Count the descriptors that lead to a folder or below it; those of other tests' threads do not count."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself has gone
            found.append(path_of(int(each.name)))
    return sum(path == str(folder) or path.startswith(f"{folder}/") for path in found)
