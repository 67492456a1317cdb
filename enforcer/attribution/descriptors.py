"""Descriptors that may hold GPU memory: who has how many, of all processes of the node.

``cuMemExportToShareableHandle`` makes a descriptor that keeps memory after its maker released it, in whatever process a
copy of it is. It is an open file of the device nvidiactl, and so is the one that each user of CUDA or NVML has beside
files of a GPU's device. Measured on an H100, driver 580.159.04: each user has exactly one; each descriptor is one more.

A tenant writes its own processes' descriptors and those of a process that takes them from a socket; no others. It can
hide one: behind an open GPU device, in a message that nobody has read, in io_uring, in a thread with files of its own.
Where the first thread of a process in a pod has ended, its files cannot be read: then nobody is charged. The same holds
where a tenant makes a look slow.
"""

import ctypes
import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.procfs import DEAD, PROC, CgroupAttributor, PidHandle, read_stat
from enforcer.attribution.unaccounted import UNKNOWN, Holder, Holders
from enforcer.runtime.background import BackgroundExecutor
from gpushare.errors import ConfigError

LOOK_SECONDS: Final = 2.0
"""A look goes on for so long; what the processes hold that were not looked at by then is not known."""
WAIT_SECONDS: Final = 4.0
"""A look is waited for so long: a call of the kernel may wait for a file server, or for a peer of a socket."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a process's table of mounts; where it has more, it is not known what the process holds."""
REMOTE: Final = (b"nfs", b"fuse", b"cifs", b"smb", b"ceph", b"9p", b"afs", b"lustre", b"gpfs", b"beegfs")
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
        raise ConfigError(f"--control-device {text!r:.80} is not a device number; write MAJOR:MINOR, such as 195:255")
    return ControlDevice(int(major), int(minor))


class DescriptorReader:
    """Looks at the open files of all processes: a tenth of a second of a node with 500. Safe to use from all threads.

    Args:
        attributor: finds the container of a process.
        files: which files are meant.
        proc: where procfs is mounted.
    """

    def __init__(self, attributor: CgroupAttributor, files: ControlFiles, proc: str = PROC) -> None:
        self._attributor, self._files, self._proc = attributor, files, proc
        self._looks = BackgroundExecutor("look at open files", WAIT_SECONDS)

    def read(self) -> Holders:
        """Look now. What a tenant can make slow, or hang, is not known."""
        if self._looks.problem is not None:
            return UNKNOWN
        try:
            return self._looks.submit("look", self._look).result(WAIT_SECONDS)
        except TimeoutError:
            return UNKNOWN

    def _look(self) -> Holders:
        self._files.refresh()
        until, found, complete = time.monotonic() + LOOK_SECONDS, list[Holder](), True
        for pid in (int(name) for name in _names(self._proc) if name.isascii() and name.isdigit()):
            if time.monotonic() > until:
                return Holders(tuple(found), complete=False)
            identity, count = self._holder(pid, until)
            if identity is not None and count:
                found.append(Holder(identity, count))
            complete &= count is not None or identity is None or identity.owner is None
        return Holders(tuple(found), complete)

    def _holder(self, pid: int, until: float) -> tuple[Identity | None, int | None]:
        """Return who has a pid, where it is needed, and the descriptors; ``None``: it is not known how many."""
        try:
            handle = PidHandle.open(pid)
        except OSError:
            return self._attributor.identify(pid), None
        if handle is None:
            return None, 0
        with handle:
            count = self._count(handle, until)
            identity = None if count == 0 else self._attributor.identify(pid)
            # One that has ended has closed them, and its pid may be another's.
            return (None, 0) if handle.ended() else (identity, count)

    def _count(self, handle: PidHandle, until: float) -> int | None:
        control, gpus = 0, False
        try:
            for file in self._open_files(handle):
                control += self._files.is_control(file)
                gpus = gpus or self._files.is_gpu(file)
                if time.monotonic() > until:
                    return None
        except OSError:
            return None
        return max(0, control - gpus)

    def _open_files(self, handle: PidHandle) -> Iterator[OpenFile]:
        """Yield what there is to know of each open file. Raises ``OSError``: they cannot be read.

        A copy is closed again, which asks a network's file server: those files are left out.
        """
        folder = f"{self._proc}/{handle.pid}"
        first = read_stat(f"{folder}/stat")
        if first is None or first.state in DEAD:
            raise ProcessLookupError(f"the first thread of process {handle.pid} has ended")
        remote = _remote_mounts(f"{folder}/mountinfo")
        for name in _names(f"{folder}/fdinfo"):
            if remote and _mount(f"{folder}/fdinfo/{name}") in remote:
                continue
            if (found := look_at_copy(handle, int(name))) is not None:
                yield found


def _remote_mounts(file: str) -> frozenset[bytes]:
    """Return the ids of a process's mounts from elsewhere. Raises ``OSError``: they cannot be read."""
    with open(file, "rb") as table:  # noqa: PTH123 - a path object costs more than the call
        text = table.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES} bytes", file)
    mounts = (line.partition(b" - ") for line in text.splitlines())
    return frozenset(head.split(b" ", 1)[0] for head, _, tail in mounts if tail.startswith(REMOTE))


def _mount(fdinfo: str) -> bytes:
    """Return the id of the mount that an open file is on; empty where it has been closed."""
    try:
        with open(fdinfo, "rb", buffering=0) as file:  # noqa: PTH123 - a path object costs more than the call
            lines = file.read(4096).splitlines()
    except OSError:
        return b""
    return next((line.split()[1] for line in lines if line.startswith(b"mnt_id:")), b"")


def _names(folder: str) -> Iterator[str]:
    with os.scandir(folder) as found:
        yield from (each.name for each in found)
