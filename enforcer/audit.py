"""The kill log on disk: appended to, made durable, and only then acted upon.

Segments ``kills-<first number>.jsonl`` in a directory that is ours alone; the chain runs on from one to the next and
over restarts. A write that fails is taken back; a line that was torn by a crash is cut off and said to have been.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from enforcer.record import GENESIS, MAX_BYTES, Head, Kind, head_of, read, seal
from gpushare.errors import RecordError
from gpushare.reasons import Reason

FOLDER: Final = "audit"
SEGMENT_BYTES: Final = 4 * 1024 * 1024
PREFIX: Final = "kills-"
SUFFIX: Final = ".jsonl"
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking so that a FIFO somebody put there is looked at and not waited for."""


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
        self._size = 0
        self._head = GENESIS
        self._doubtful = False

    @property
    def head(self) -> Head:
        """The last record's number and hash: the anchor to keep elsewhere."""
        return self._head

    def open(self) -> list[dict[str, Any]]:
        """Find the chain's end and mend a torn tail. Returns the INTENT records that nothing was said about since.

        Raises:
            RecordError: the folder is not ours alone, or its last record does not hold.
        """
        with self._lock, _explained(self._folder):
            self._recover()
            return _unfinished(segments(self._folder)[-2:])

    def append(self, kind: Kind, fields: Mapping[str, Any]) -> Head:
        """Write one record and wait until it is durable. Returns the chain's new head.

        Raises:
            RecordError: it is not durable; what was written of it has been taken back, or will be.
        """
        with self._lock, _explained(self._folder):
            if self._file is None:
                self._recover()
            return self._append(kind, fields)

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            self._forget()
            if self._directory is not None:
                os.close(self._directory)
                self._directory = None

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
        directory = self._opened_directory()
        file = os.open(segment_name(first), _FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
        self._adopt(file)
        if self._size:
            raise RecordError(f"{segment_name(first)} is there before its first record; move it away")
        os.fsync(directory)
        self._doubtful = False

    def _recover(self) -> None:
        """Take up the chain where the files on disk end."""
        self._forget()
        directory = self._opened_directory()
        names = [path.name for path in segments(self._folder)]
        self._head, torn = GENESIS, b""
        for name in reversed(names):
            file = os.open(name, _FLAGS, dir_fd=directory)
            self._adopt(file, last=name == names[-1])
            last, rest = _tail(file)
            torn = torn or rest
            if rest:
                os.ftruncate(file, os.fstat(file).st_size - len(rest))
            if name != names[-1]:
                os.close(file)
            if last:
                self._head = head_of(_trusted(name, last))
                break
        self._size = 0 if self._file is None else os.fstat(self._file).st_size
        if torn:
            self._append(Kind.RECOVERED, _torn(torn))

    def _adopt(self, file: int, *, last: bool = True) -> None:
        """Check that an opened segment is a plain file of ours; keep the last one."""
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
            os.close(file)
            raise RecordError(f"a segment in {self._folder} is no plain file of ours; move it away")
        if last:
            self._file, self._size = file, found.st_size

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


class _explained:  # noqa: N801 - reads as a statement
    """Turns what the operating system says into a ``RecordError``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate."""
        if isinstance(error, OSError):
            raise RecordError(f"the kill log in {self._folder} cannot be written: {error}") from error


def _write_whole(file: int, data: bytes) -> None:
    """A write to a filling disk may be short: go on until it is whole or fails."""
    while data:
        data = data[os.write(file, data) :]


def _tail(file: int) -> tuple[bytes, bytes]:
    """The last whole line of a segment, and what stands after it."""
    size = os.fstat(file).st_size
    data = os.pread(file, 3 * MAX_BYTES, max(0, size - 3 * MAX_BYTES))
    body, newline, rest = data.rpartition(b"\n")
    return body[body.rfind(b"\n") + 1 :] + newline, rest


def _trusted(name: str, line: bytes) -> dict[str, Any]:
    try:
        return read(line)
    except RecordError as error:
        raise RecordError(
            f"the last record of {name} does not hold: {error.message}; move the folder aside to begin a new log"
        ) from error


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
        elif record["kind"] in {Kind.ABORTED, Kind.OUTCOME}:
            open_.pop(record.get("intent", 0), None)
    return list(open_.values())


def _records(files: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                with suppress(RecordError):  # finding edits is verify's business
                    yield read(line)
