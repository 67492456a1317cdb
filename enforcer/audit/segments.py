"""The audit log's directory, open by descriptor: whatever becomes of its path, nothing is written outside of it."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from enforcer.audit.record import MAX_BYTES
from gpushare.errors import RecordError
from gpushare.patterns import Pattern

PREFIX: Final = "kills-"
FOLDER: Final = "audit"
"""Of the log, in the state directory."""
SUFFIX: Final = ".jsonl"
_NAME: Final = Pattern(rf"{PREFIX}(\d{{12,15}})[.]jsonl", 32)
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking so that a FIFO somebody put there is looked at and not waited for."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class Extent(NamedTuple):
    """What differs once somebody changed a file or replaced it. ``changed`` is its ctime in ns, also of a new link."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """Take it from what the file system says."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)


def segment_name(first: int) -> str:
    """Name the segment that begins with that record; names sort as the numbers do."""
    return f"{PREFIX}{first:012d}{SUFFIX}"


def first_of(name: str) -> int | None:
    """The number of the record a segment of that name begins with; ``None``: we give no such name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def _is_segment(name: str) -> bool:
    """Whether a file of this name is taken for part of the log, also where we would not have given it."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def segments(folder: Path) -> list[Path]:
    """The log's segments in order. Raises ``OSError`` where the folder cannot be read."""
    return sorted(path for path in folder.iterdir() if _is_segment(path.name))


def lines_of(path: Path, again: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """A segment's lines with their ends. What is longer than a record comes in pieces: it is none anyway.

    Args:
        path: of the segment.
        again: asked whether to look again at a last line without an end, which may be in the middle of being written.

    Raises:
        OSError: it cannot be read, or is not a regular file, which might have no end.
    """
    with open(path, "rb", opener=_at_once) as lines:
        if not stat.S_ISREG(os.fstat(lines.fileno()).st_mode):
            raise OSError(errno.EINVAL, "the segment is not a regular file", str(path))
        while line := lines.readline(MAX_BYTES + 1):
            at = lines.tell() - len(line)
            while 0 < len(line) <= MAX_BYTES and not line.endswith(b"\n") and again():
                lines.seek(0, os.SEEK_END)  # what was read before is forgotten: the line may have been taken back
                lines.seek(at)
                line = lines.readline(MAX_BYTES + 1)
            yield from [line] if line else []


def _at_once(path: str, flags: int) -> int:
    """Open what may be no plain file, without waiting for anybody at its other end."""
    return os.open(path, flags | os.O_NONBLOCK)


class LogFolder:
    """Opens, lists, renames and removes by name in one directory. Not safe to use from several threads.

    Methods raise ``OSError`` as the operating system does, and ``RecordError`` where something is not ours alone.

    Args:
        path: made if it is not there (0700); must be ours and nobody else's to write or read, and its parent nobody
            else's to write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether its methods may be called."""
        return self._descriptor is not None

    def open(self) -> None:
        """Open the directory, unless it is open already; its own entry is durable afterwards."""
        if self.is_open:
            return
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, _DIRECTORY | os.O_NOFOLLOW)
        try:
            self._check(os.fstat(descriptor), "chown {} and chmod 0700", 0o077)
            with _folder(self.path.parent) as parent:
                self._check(os.fstat(parent), "chown {} and chmod go-w its parent", _OTHERS_WRITE)
                os.fsync(parent)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        with suppress(OSError), _folder(self.path.parent.parent) as grandparent:
            os.fsync(grandparent)

    def close(self) -> None:
        """Let go: another directory may stand in its place by now."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def names(self) -> list[str]:
        """The log's segments in order."""
        with os.scandir(self._opened()) as entries:
            return sorted(entry.name for entry in entries if _is_segment(entry.name))

    def paths(self) -> list[Path]:
        """The same for programs that only read."""
        return [self.path / name for name in self.names()]

    def file(self, name: str, *, make: bool = False, appending: bool = True) -> int:
        """Open a file and check that it is plain, ours, and known by no other name."""
        flags = _FLAGS | (os.O_CREAT if make else 0) | (os.O_APPEND if appending else 0)
        file = os.open(name, flags, 0o600, dir_fd=self._opened())
        try:
            self._check_file(name, os.fstat(file))
        except BaseException:
            os.close(file)
            raise
        return file

    def is_free(self, name: str) -> bool:
        """Whether there is no such file, or an empty one that may be replaced."""
        try:
            found = self.found(name)
        except FileNotFoundError:
            return True
        return stat.S_ISREG(found.st_mode) and not found.st_size

    def found(self, name: str) -> os.stat_result:
        """What the file system says of a name; a link is not followed."""
        return os.stat(name, dir_fd=self._opened(), follow_symlinks=False)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; another of the new name is gone."""
        os.rename(old, new, src_dir_fd=self._opened(), dst_dir_fd=self._opened())

    def remove(self, name: str) -> None:
        """Remove a file that may be gone already."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._opened())

    def sync(self) -> None:
        """Wait until what was made, renamed and removed is durable."""
        os.fsync(self._opened())

    def leads_to(self, file: int, name: str) -> bool:
        """Whether who follows the path today finds this very file, and under no second name."""
        try:
            found = (self.path / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return found.st_nlink == 1 and os.path.samestat(found, os.fstat(file))

    def _opened(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def _check_file(self, name: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
            raise RecordError(
                f"{name} in {self.path} is not a regular file with one link and the enforcer's owner; move the file "
                "away"
            )

    def _check(self, found: os.stat_result, remedy: str, forbidden: int) -> None:
        mode, ours = stat.S_IMODE(found.st_mode), os.geteuid()
        trusted = found.st_uid == ours or (forbidden == _OTHERS_WRITE and found.st_uid == 0)
        if trusted and (not mode & forbidden or (forbidden == _OTHERS_WRITE and mode & stat.S_ISVTX)):
            return
        raise RecordError(
            f"{self.path} or its parent has owner {found.st_uid} and mode {mode:04o}, so another user could "
            f"change the audit log; run {remedy.format(ours)}"
        )


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    descriptor = os.open(path, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
