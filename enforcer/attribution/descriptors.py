"""Descriptors that may hold GPU memory: who has how many, of all processes of the node.

``cuMemExportToShareableHandle`` makes a descriptor that keeps memory after its maker released it, in whatever process a
copy of it is. It is an open file of the device nvidiactl, and so is the one that each user of CUDA or NVML has beside
files of a GPU's device. Measured on an H100, driver 580.159.04: each user has exactly one; each descriptor is one more.

A tenant writes its own processes' descriptors and those of a process that takes them from a socket; no others. It can
hide one: behind an open GPU device, in a message that nobody has read, in io_uring, in a thread with files of its own.
"""

import ctypes
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

from enforcer.attribution.procfs import DEAD, PROC, CgroupAttributor, is_alive, read_stat
from enforcer.attribution.unaccounted import Holder, Holders
from gpushare.errors import ConfigError

MOST_FILES: Final = 65_536
"""Of one process that are looked at; where there are more, it is not known what it holds."""
MOST_THREADS: Final = 64


AT_FDCWD: Final = -100
AT_STATX_DONT_SYNC: Final = 0x4000
"""The kernel asks no file server: one that hangs, as a network's may, must not make us hang."""
STATX_BASIC: Final = 0x7FF
STATX_BYTES: Final = 256
_C: Final = ctypes.CDLL(None, use_errno=True)
_MODE, _INODE, _NUMBERS = Struct("H"), Struct("Q"), Struct("4I")
"""Of ``struct statx``, the same on every architecture."""
Number = tuple[int, int]
"""A device's major and minor number."""


class OpenFile(NamedTuple):
    """What ``statx`` says of an open file."""

    mode: int
    inode: int
    rdev: Number
    """Of a device."""
    dev: Number
    """Of the file system."""


def look(path: str) -> OpenFile:
    """Look at a file without asking anybody but the kernel. Raises ``OSError``."""
    made = ctypes.create_string_buffer(STATX_BYTES)
    if _C.statx(AT_FDCWD, path.encode(), AT_STATX_DONT_SYNC, STATX_BASIC, made):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    (mode,), (inode,) = _MODE.unpack_from(made, 28), _INODE.unpack_from(made, 32)
    return OpenFile(mode, inode, _NUMBERS.unpack_from(made, 128)[:2], _NUMBERS.unpack_from(made, 128)[2:])


class ControlFiles(Protocol):
    """Knows the files that are such descriptors, by what ``stat`` says of them."""

    def refresh(self) -> None:
        """Look which files there are, before they are compared."""

    def is_control(self, file: OpenFile) -> bool:
        """Return whether an open file is one of the control device."""

    def is_gpu(self, file: OpenFile) -> bool:
        """Return whether an open file is one of a GPU's device, so that one of the control device belongs to that."""


@dataclass(frozen=True, slots=True)
class ControlDevice:
    """The character device nvidiactl, and GPUs' devices of the same major number."""

    major: int = 195
    minor: int = 255

    def refresh(self) -> None:
        """There is nothing to look for."""

    def is_control(self, file: OpenFile) -> bool:
        """Return whether it is the control device."""
        return stat.S_ISCHR(file.mode) and file.rdev == (self.major, self.minor)

    def is_gpu(self, file: OpenFile) -> bool:
        """Return whether it is another device of the driver."""
        return stat.S_ISCHR(file.mode) and file.rdev[0] == self.major and not self.is_control(file)


class ControlFolder:
    """A simulated driver: each descriptor is a file of its own in a folder, and users of CUDA have none."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, frozenset[tuple[Number, int]]()

    def refresh(self) -> None:
        """List the folder: seen from another mount, a file has the same device and inode."""
        try:
            found = [look(str(each)) for each in self._folder.iterdir()]
        except OSError:  # none yet, or one that has just gone
            found = []
        self._known = frozenset((each.dev, each.inode) for each in found)

    def is_control(self, file: OpenFile) -> bool:
        """Return whether it lies in the folder."""
        return (file.dev, file.inode) in self._known

    def is_gpu(self, _: OpenFile) -> bool:
        """Return false."""
        return False


def control_files(text: str) -> ControlFiles:
    """Read a device number such as ``195:255``, or the folder of a simulator. Raises ``ConfigError``."""
    if text.startswith("/"):
        return ControlFolder(Path(text))
    major, _, minor = text.partition(":")
    if not (major + minor).isascii() or not (major.isdigit() and minor.isdigit()) or len(text) > len("4095:1048575"):
        raise ConfigError(f"--control-device {text!r} is no device number; write MAJOR:MINOR, such as 195:255")
    return ControlDevice(int(major), int(minor))


class DescriptorReader:
    """Looks at the open files of all processes: a few tens of milliseconds of a node with 500.

    Args:
        attributor: finds the container of a process.
        files: which files are meant.
        proc: where procfs is mounted.
    """

    def __init__(self, attributor: CgroupAttributor, files: ControlFiles, proc: str = PROC) -> None:
        self._attributor, self._files, self._proc = attributor, files, proc

    def read(self) -> Holders:
        """Look now."""
        self._files.refresh()
        found, complete = list[Holder](), True
        for pid in (int(name) for name in _names(self._proc) if name.isascii() and name.isdigit()):
            count = self._descriptors(pid)
            # Who it is comes last: the pid may be another's by now, whom a kill compares again.
            identity = None if count == 0 else self._attributor.identify(pid)
            if identity is not None and count:
                found.append(Holder(identity, count))
            complete &= count is not None or identity is None or identity.owner is None
        return Holders(tuple(found), complete)

    def _descriptors(self, pid: int) -> int | None:
        """Count one process's; ``None``: they cannot be read, or there are too many files."""
        control, gpus, seen = 0, False, 0
        try:
            for file in islice(self._open_files(pid), MOST_FILES + 1):
                seen += 1
                control += self._files.is_control(file)
                gpus = gpus or self._files.is_gpu(file)
        except OSError:
            return 0 if not is_alive(pid) else None
        return None if seen > MOST_FILES else max(0, control - gpus)

    def _open_files(self, pid: int) -> Iterator[OpenFile]:
        """Yield what there is to know of each open file. Raises ``OSError``: they cannot be read."""
        leader = read_stat(f"{self._proc}/{pid}/stat")
        folder = f"{self._proc}/{pid}/task"
        living = leader is None or leader.state not in DEAD
        # Where the leader has ended, its threads have its files.
        tasks = [str(pid)] if living else _names(folder)[: MOST_THREADS + 1]
        for task in tasks:
            where = f"{folder}/{task}/fd"
            for name in _names(where) if living or task != str(pid) else ():
                try:
                    yield look(f"{where}/{name}")
                except FileNotFoundError:  # closed meanwhile
                    continue


def _names(folder: str) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - a path object costs more than the call
