"""Descriptors that may hold GPU memory: who has how many, of all processes of the node.

``cuMemExportToShareableHandle`` makes a descriptor that keeps memory after its maker released it, in whatever process a
copy of it is. It is an open file of the device nvidiactl, and so is the one that each user of CUDA or NVML has beside
files of a GPU's device. Measured on an H100, driver 580.159.04: each user has exactly one; each descriptor is one more.

A tenant writes its own processes' descriptors and those of a process that takes them from a socket; no others. It can
hide one: behind an open GPU device, in a message that nobody has read, in io_uring, in a thread with files of its own.
Where the first thread of a process in a pod has ended, its files cannot be read: then nobody is charged.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

from enforcer.attribution.procfs import PROC, CgroupAttributor, PidHandle, is_alive
from enforcer.attribution.unaccounted import Holder, Holders
from gpushare.errors import ConfigError

MOST_FILES: Final = 65_536
"""Of one process that are looked at; where there are more, it is not known what it holds."""
REMOTE: Final = ("nfs", "fuse", "cifs", "smb", "ceph", "9p", "afs", "lustre", "gpfs", "beegfs")
"""Begins the types of file systems whose server may hang."""
PIDFD_GETFD: Final = 438
AT_EMPTY_PATH: Final = 0x1000


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


def look(path: str, descriptor: int = AT_FDCWD) -> OpenFile:
    """Look at a file without asking anybody but the kernel; with an empty path at an open one. Raises ``OSError``."""
    made = ctypes.create_string_buffer(STATX_BYTES)
    flags = AT_STATX_DONT_SYNC | (0 if path else AT_EMPTY_PATH)
    if _C.statx(descriptor, path.encode(), flags, STATX_BASIC, made):
        raise _error(path)
    (mode,), (inode,) = _MODE.unpack_from(made, 28), _INODE.unpack_from(made, 32)
    return OpenFile(mode, inode, _NUMBERS.unpack_from(made, 128)[:2], _NUMBERS.unpack_from(made, 128)[2:])


def look_at_copy(handle: PidHandle, descriptor: int) -> OpenFile | None:
    """Look at an open file of a process by a copy, closed at once; ``None``: it has been closed. Raises ``OSError``.

    It takes the right to trace the process alone: /proc/<pid>/fd would take that to read any file as well.
    """
    copy = _C.syscall(PIDFD_GETFD, handle.fileno(), descriptor, 0)
    if copy < 0:
        if ctypes.get_errno() == errno.EBADF:
            return None
        raise _error(f"descriptor {descriptor} of process {handle.pid}")
    try:
        return look("", copy)
    finally:
        os.close(copy)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


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
        """Yield what there is to know of each open file. Raises ``OSError``: they cannot be read.

        A copy is closed again, which asks a network's file server: those files are left out.
        """
        handle = PidHandle.open(pid)
        if handle is None:
            return
        with handle:
            where, remote = f"{self._proc}/{pid}/fdinfo", _remote_mounts(f"{self._proc}/{pid}/mountinfo")
            for name in _names(where):
                if remote and _mount(f"{where}/{name}") in remote:
                    continue
                if (found := look_at_copy(handle, int(name))) is not None:
                    yield found


def _remote_mounts(file: str) -> frozenset[str]:
    """Return the ids of a process's mounts from elsewhere."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return frozenset()
    mounts = (line.partition(" - ") for line in lines)
    return frozenset(head.split(" ", 1)[0] for head, _, tail in mounts if tail.startswith(REMOTE))


def _mount(fdinfo: str) -> str:
    """Return the id of the mount that an open file is on; empty where it has been closed."""
    try:
        lines = Path(fdinfo).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")


def _names(folder: str) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - a path object costs more than the call
