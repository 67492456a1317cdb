"""The shared memory of a node's MPS: a ``/dev/shm`` that daemons, servers and their clients have together.

A tmpfs of its own and not the node's ``/dev/shm``: bounded, and nothing of the node's lies in it. It ends with the host
process, whose daemons and servers end before it; containers that had it keep what they have.
"""

import ctypes
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.shared_memory import MAX_FILES, SERVER_FILE

MOUNTS: Final = Path("/proc/self/mountinfo")
HERE: Final = Path("/dev/shm")  # noqa: S108 - the name that shm_open means
MODE: Final = 0o1777
UNUSED: Final = 0o755
NOSUID, NODEV, NOEXEC, REMOUNT, BIND, DETACH = 2, 4, 8, 32, 4096, 2
"""``MS_...`` of mount(2), and ``MNT_DETACH``."""

libc: Final = ctypes.CDLL(None, use_errno=True)


def mount_shared_memory(folder: Path, size: str, here: Path = HERE) -> bool:
    """Make a directory shared memory of at most ``size``, and this process's own ``/dev/shm``.

    Where it is mounted already it gets the new size.

    Args:
        folder: the directory.
        size: as tmpfs takes it: ``64m``, or ``50%`` of the memory of the node.
        here: this process's ``/dev/shm``.

    Returns:
        ``False``: we may not mount. It is a directory then, as large as what it lies on lets it be.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(MODE)  # of what the mount covers, too: by that the enforcer knows that it was made
    try:
        flags = NOSUID | NODEV | NOEXEC | (REMOUNT if folder.is_mount() else 0)
        _mount("gpu-share", folder, "tmpfs", flags, f"size={size},mode={MODE:o}")
        if not here.samefile(folder):
            _mount(str(folder), here, "", BIND, "")
    except PermissionError:
        return False
    return True


def unmount_shared_memory(folder: Path) -> bool:
    """Take it off the node, be it ours or of one that was killed. Who still has it keeps it.

    Returns:
        ``False``: the node has it still, because we may not unmount, or not for others than ourselves.
    """
    if not folder.is_mount():
        return True
    shared = _is_shared(folder)
    try:
        _check(libc.umount2(os.fsencode(folder), DETACH), folder)
        folder.chmod(UNUSED)
    except OSError:
        return False
    return shared


def server_files(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return owner and mode of the files that MPS servers keep there, each pair once; none where it cannot be read.

    Tenants can write there, so this is good for an explanation and for no decision.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        return tuple(sorted(set(_owned(itertools.islice(entries, MAX_FILES)))))
    return ()


def _owned(entries: Iterator[os.DirEntry[str]]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        if entry.name.startswith(SERVER_FILE):
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                yield found.st_uid, stat.S_IMODE(found.st_mode)


def _is_shared(folder: Path) -> bool:
    """Whether what is unmounted there is unmounted for the node too: field 7 and on say so, field 5 is the place."""
    rows = (line.split(" ") for line in MOUNTS.read_text().splitlines())
    last = [row[6 : row.index("-")] for row in rows if row[4] == str(folder)][-1:]
    return any(each.startswith("shared:") for options in last for each in options)


def _mount(source: str, folder: Path, kind: str, flags: int, data: str) -> None:
    done = libc.mount(source.encode(), os.fsencode(folder), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(done, folder)


def _check(done: int, folder: Path) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
