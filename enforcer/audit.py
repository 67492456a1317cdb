"""The kill log on disk: appended to, made durable, and only then acted upon.

Segments ``kills-<first number>.jsonl`` in a directory that is ours alone; the chain runs on from one to the next and
over restarts. A write that fails is taken back; a line that was torn by a crash is cut off and said to have been.
"""

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

from enforcer.record import GENESIS, MAX_BYTES, Head, Kind, head_of, read, seal
from gpushare.errors import RecordError
from gpushare.reasons import Reason

FOLDER: Final = "audit"
SEGMENT_BYTES: Final = 4 * 1024 * 1024
PREFIX: Final = "kills-"
SUFFIX: Final = ".jsonl"
_ASIDE: Final = "move the folder aside to begin a new log"
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking so that a FIFO somebody put there is looked at and not waited for."""

Listener = Callable[[Kind, bytes], None]
"""Takes a record: its kind and its line, the end included."""


def utc_now() -> str:
    """The wall clock as a record's label, such as ``2026-11-20T22:16:05.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def segment_name(first: int) -> str:
    """Name the segment that begins with that record; names sort as the numbers do."""
    return f"{PREFIX}{first:012d}{SUFFIX}"


def segments(folder: Path) -> list[Path]:
    """The log's segments in order. Raises ``OSError`` where the folder cannot be read."""
    return sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX) and path.name.endswith(SUFFIX))


class KillLog:
    """Appends records. Safe to use from several threads; one process at a time (``enforcer.lock``).

    Args:
        folder: made if it is not there (0700); must be ours and nobody else's to write or read.
        segment_bytes: a segment that would grow beyond this is followed by the next.
        now: gives the ``time`` of records.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, now: Callable[[], str] = utc_now) -> None:
        self._folder, self._segment_bytes, self._now = folder, segment_bytes, now
        self._lock = threading.Lock()
        self._directory: int | None = None
        self._file: int | None = None
        self._name = ""
        self._size = 0
        self._head = GENESIS
        self._doubtful = False
        self._torn = b""
        self.problem: str | None = None
        """Why the last record asked for is not there; ``None`` while all is well."""
        self.listeners: Final[list[Listener]] = []
        """Told of each record once it is durable, in the log's order; they neither wait nor fail."""

    @property
    def head(self) -> Head:
        """The last record's number and hash: the anchor to keep elsewhere."""
        return self._head

    def open(self) -> list[dict[str, Any]]:
        """Find the chain's end and mend a torn tail. Returns the INTENT records that nothing was said about since.

        Raises:
            RecordError: the folder is not ours alone, or its last record does not hold.
        """
        with self._lock, self._explained():
            self._recover()
            return _unfinished(segments(self._folder)[-2:])

    def holds(self, head: Head) -> bool:
        """Tell whether a record is in the log with that hash. Raises ``OSError`` where the log cannot be read."""
        names = [file for file in segments(self._folder) if file.name <= segment_name(head.seq)]
        return any(head_of(record) == head for record in _records(names[-1:]))

    def append(self, kind: Kind, fields: Mapping[str, Any]) -> Head:
        """Write one record and wait until it is durable. Returns the chain's new head.

        Raises:
            RecordError: it is not durable; what was written of it has been taken back, or will be.
        """
        with self._lock, self._explained():
            if self._file is None:
                self._recover()
            elif self._taken_away():
                # What follows continues the chain in a new file, so that verifying shows what is missing before it.
                self._let_go()
            return self._append(kind, fields)

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            self._let_go()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _append(self, kind: Kind, fields: Mapping[str, Any]) -> Head:
        line, head = seal(self._head, kind, self._now(), fields)
        full = self._size and self._size + len(line) > self._segment_bytes
        if self._file is None or full or self._doubtful:
            self._begin_segment(head.seq)
        self._write(line)
        self._head = head
        for listener in self.listeners:
            listener(kind, line)
        return head

    def _write(self, line: bytes) -> None:
        """Write and sync, or take back. After a failed sync the kernel may have dropped the data and forgotten it."""
        assert self._file is not None
        try:
            _write_whole(self._file, line)
            os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            self._forget()
            self._doubtful = True
            raise
        self._size += len(line)

    def _begin_segment(self, first: int) -> None:
        self._forget()
        directory, name = self._opened_directory(), segment_name(first)
        file = os.open(name, _FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
        try:
            self._check_empty(file, name)
            os.fsync(directory)
        except BaseException:
            os.close(file)
            raise
        self._file, self._name, self._size, self._doubtful = file, name, 0, False

    def _recover(self) -> None:
        """Take up the chain where the files on disk end; where that cannot be known, none is held for writing."""
        self._let_go()
        directory = self._opened_directory()
        names = [path.name for path in segments(self._folder)]
        head = next((head for name in reversed(names) if (head := self._end_of(name, directory)) is not None), GENESIS)
        if names:
            file = os.open(names[-1], _FLAGS, dir_fd=directory)
            self._file, self._name, self._size = file, names[-1], os.fstat(file).st_size
        self._head = head
        if self._torn:
            self._append(Kind.RECOVERED, _torn(self._torn))
            self._torn = b""

    def _end_of(self, name: str, directory: int) -> Head | None:
        """Where one segment leaves the chain, a torn tail cut off; ``None`` where it holds no record."""
        file = os.open(name, _FLAGS, dir_fd=directory)
        try:
            size = self._checked(file)
            last, rest = _tail(file, size)
            if len(rest) > MAX_BYTES:
                raise RecordError(f"{name} ends in {len(rest)} bytes that are no line; {_ASIDE}")
            self._torn = self._torn or rest
            if rest:
                os.ftruncate(file, size - len(rest))
            return head_of(_trusted(name, last)) if last else None
        finally:
            os.close(file)

    def _checked(self, file: int) -> int:
        """Check that an opened segment is a plain file of ours; returns its size."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
            raise RecordError(f"a segment in {self._folder} is no plain file of ours; move it away")
        return found.st_size

    def _check_empty(self, file: int, name: str) -> None:
        if self._checked(file):
            raise RecordError(f"{name} is there before its first record; move it away")

    def _taken_away(self) -> bool:
        """Whether the segment we hold is no longer the one of its name: what is written to it nobody would find."""
        assert self._file is not None
        try:
            found = (self._folder / self._name).lstat()
        except FileNotFoundError:
            return True
        return not os.path.samestat(found, os.fstat(self._file))

    def _opened_directory(self) -> int:
        if self._directory is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            found = os.fstat(directory)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                os.close(directory)
                raise RecordError(
                    f"{self._folder} has owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}; "
                    f"it must be ours alone: chown {os.geteuid()} and chmod 0700"
                )
            self._directory = directory
        return self._directory

    def _forget(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._file = None

    def _let_go(self) -> None:
        """Forget the directory too: another may stand in its place by now."""
        self._forget()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the operating system says into a ``RecordError``, and remember what hinders us."""
        try:
            yield
        except OSError as error:
            self.problem = f"the kill log in {self._folder} cannot be written: {error}"
            raise RecordError(self.problem) from error
        except RecordError as error:
            self.problem = error.message
            raise
        self.problem = None


def _write_whole(file: int, data: bytes) -> None:
    """A write to a filling disk may be short: go on until it is whole or fails."""
    while data:
        data = data[os.write(file, data) :]


def _tail(file: int, size: int) -> tuple[bytes, bytes]:
    """The last whole line of a segment, and what stands after it."""
    data = os.pread(file, 3 * MAX_BYTES, max(0, size - 3 * MAX_BYTES))
    body, newline, rest = data.rpartition(b"\n")
    return body[body.rfind(b"\n") + 1 :] + newline, rest


def _trusted(name: str, line: bytes) -> dict[str, Any]:
    try:
        return read(line)
    except RecordError as error:
        raise RecordError(f"the last record of {name} does not hold: {error.message}; {_ASIDE}") from error


def _torn(rest: bytes) -> dict[str, Any]:
    note = "an unfinished line was cut off: a crash, or a disk that was full"
    digest = "sha256:" + hashlib.sha256(rest).hexdigest()
    return {"reason": str(Reason.RECOVERED), "note": note, "lostBytes": len(rest), "lost": digest}


def _unfinished(files: list[Path]) -> list[dict[str, Any]]:
    """INTENT records without an answer. Only the end of the log can hold some: kills are answered within seconds."""
    open_: dict[int, dict[str, Any]] = {}
    for record in _records(files):
        if record["kind"] == Kind.INTENT:
            open_[record["seq"]] = record
        elif record["kind"] in {Kind.ABORTED, Kind.OUTCOME} and isinstance(answered := record.get("intent"), int):
            open_.pop(answered, None)
    return list(open_.values())


def _records(files: list[Path]) -> Iterator[dict[str, Any]]:
    for line in chain.from_iterable(map(lines_of, files)):
        with suppress(RecordError):  # finding edits is verify's business
            yield read(line)


def lines_of(path: Path) -> Iterator[bytes]:
    """A segment's lines with their ends. What is longer than a record comes in pieces: it is none anyway.

    Raises:
        OSError: it cannot be read, or is no plain file, which might have no end.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as lines:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        while line := lines.readline(MAX_BYTES + 1):
            yield line
