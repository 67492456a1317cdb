"""The audit log on disk: appended to, made durable, and only then acted upon.

Segments ``kills-<first number>.jsonl`` in a directory that is ours alone; the chain runs on from one to the next and
over restarts. A write that fails is taken back; a line that was torn by a crash is cut off, on record. On a
full disk the log goes on in space reserved before (``enforcer.audit.reserved_space``). What is too much or too old is
removed from the front, on record.
"""

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

from enforcer.audit import recovery
from enforcer.audit.pressing import PressingRecords
from enforcer.audit.record import GENESIS, MAX_BYTES, REMOVED, ChainHead, Kind, append_hash, head_of, read
from enforcer.audit.reserved_space import BYTES, ReservedSpace
from enforcer.audit.retention import Retention, SegmentInfo
from enforcer.audit.segments import FOLDER, SUFFIX, Extent, LogFolder, first_of, lines_of, segment_name, segments
from enforcer.runtime.logs import NonBlockingStream
from gpushare.errors import RecordError

__all__ = ["FOLDER", "SUFFIX", "AuditLog", "lines_of", "segment_name", "segments", "utc_now"]

SEGMENT_BYTES: Final = 4 * 1024 * 1024
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
RECENT_BYTES: Final = 64 * 1024 * 1024
"""So much of the log's end is searched for INTENTs without an answer: a process may hang for days before its comes."""
OF_INTENTS: Final = (b'"kind":"INTENT"', b'"intent":')
"""What stands in lines of INTENTs and in their answers. The others, nearly all of a long log, need not be read."""


def utc_now() -> str:
    """The wall clock as a record's label, such as ``2026-11-20T22:16:05.123Z``."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AuditLog:
    """Appends records. Safe to use from several threads; one process at a time (``enforcer.runtime.lock``).

    Args:
        folder: made if it is not there (0700); must be ours and nobody else's to write or read.
        segment_bytes: a segment that would grow beyond this is followed by the next.
        reserve_bytes: space to reserve for when the disk is full.
        retention: what is kept; looked at when the log is opened and when a segment is full.
        copy: takes each record as well, once it is durable, in the log's order; ``None``: nothing does.

    Attributes:
        pressing: notes the records that are anchored at once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        reserve_bytes: int = BYTES,
        retention: Retention | None = None,
        copy: NonBlockingStream | None = None,
    ) -> None:
        self._folder, self._segment_bytes, self._copy = LogFolder(folder), segment_bytes, copy
        self._reserve = ReservedSpace(self._folder, reserve_bytes)
        self._retention = retention or Retention()
        self._lock = threading.Lock()
        self._file: int | None = None
        self._name = ""
        self._size = 0
        self._left: Extent | None = None
        self._changes = 0
        self._head = GENESIS
        self._doubtful = False
        self._torn: deque[bytes] = deque()
        """What was cut off and is not on record yet."""
        self._doomed: deque[str] = deque()
        """Segments that a durable record says are removed."""
        self.problem: str | None = None
        """Why the last record asked for is not there; ``None`` while all is well."""
        self.pressing: Final = PressingRecords()

    @property
    def head(self) -> ChainHead:
        """The last record's number and hash: the anchor to keep elsewhere."""
        return self._head

    @property
    def written(self) -> tuple[str, Extent | None, int]:
        """The segment that is written, how its last write left it (``None``: not known), and changes seen by others."""
        return self._name, self._left, self._changes

    @property
    def shortage(self) -> str | None:
        """That the disk is full, or why a full one would stop us; ``None`` while space is reserved."""
        return self._reserve.problem

    def open(self) -> list[dict[str, Any]]:
        """Find the chain's end and repair a torn tail. Returns the INTENT records without an OUTCOME.

        Raises:
            RecordError: the folder is not ours alone, or its last record does not hold.
        """
        with self._lock, self._explained():
            self._recover()
            unfinished = _unfinished(_recent(self._folder.paths()))
            self._ensure(self._catch_up)
            self._tend()
            return unfinished

    def contains(self, head: ChainHead) -> bool:
        """Tell whether a record is in the log with that hash. Raises ``OSError`` where the log cannot be read."""
        names = [file for file in segments(self._folder.path) if file.name <= segment_name(head.seq)]
        return any(head_of(record) == head for record in _records(names[-1:]))

    def append(self, kind: Kind, fields: Mapping[str, Any]) -> ChainHead:
        """Write one record and wait until it is durable. Returns the chain's new head.

        Raises:
            RecordError: it is not durable; what was written of it has been taken back, or will be.
        """
        with self._lock, self._explained():
            if self._file is None:
                self._recover()
            elif not self._folder.leads_to(self._file, self._name):
                # What follows continues the chain in a new file, so that verifying shows what is missing before it.
                self._let_go()
                self._take_hold()
            elif Extent.of(os.fstat(self._file)) != self._left:
                self._changes += 1
            head = self._ensure(lambda: self._append(kind, fields))
            if kind is not Kind.INTENT:  # somebody waits for that, to act
                self._tend()
            return head

    def reserve(self) -> None:
        """Reserve space where there is none any more: its disk may have room again, and no record comes for days."""
        with self._lock:
            if self._folder.is_open:
                self._reserve.allocate()

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            self._let_go()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ensure(self, write: Callable[[], ChainHead]) -> ChainHead:
        """Do it; where the disk is full, in the reserved space."""
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._recover()
            if not self._reserve.promote(segment_name(self._head.seq + 1)):
                raise
        self._begin_segment(self._head.seq + 1)
        return write()

    def _append(self, kind: Kind, fields: Mapping[str, Any]) -> ChainHead:
        line, head = append_hash(self._head, kind, utc_now(), fields)
        full = self._size and self._size + len(line) > self._segment_bytes
        if self._file is None or full or self._doubtful:
            self._begin_segment(head.seq)
            self._prune()
        self._say_torn()
        if head.seq == self._head.seq + 1:
            return self._put(kind, line, head)
        return self._say(kind, fields)

    def _catch_up(self) -> ChainHead:
        """Write the records that have to come before any other."""
        self._say_torn()
        self._prune()
        return self._head

    def _say_torn(self) -> None:
        if self._torn and (self._file is None or self._doubtful):
            self._begin_segment(self._head.seq + 1)
        while self._torn:
            self._say(Kind.RECOVERED, recovery.lost_fields(self._torn[0]))
            self._torn.popleft()

    def _prune(self) -> None:
        """Record that segments are removed, as the first record of a segment: there a restart looks for it."""
        if not (names := self._surplus()) or (removed := self._removed(names)) is None:
            return
        if self._size or self._doubtful:
            self._begin_segment(self._head.seq + 1)
        note = "the enforcer removed these segments: they exceeded enforcer.auditKeep"
        self._say(Kind.PRUNED, {"note": note, REMOVED: removed})
        self._doomed.extend(names)

    def _say(self, kind: Kind, fields: Mapping[str, Any]) -> ChainHead:
        return self._put(kind, *append_hash(self._head, kind, utc_now(), fields))

    def _put(self, kind: Kind, line: bytes, head: ChainHead) -> ChainHead:
        self._write(line)
        self._head = head
        self.pressing.note(kind)
        if self._copy is not None:
            self._copy.write(line.decode("ascii"))
        return head

    def _write(self, line: bytes) -> None:
        """Write and sync, or take back. After a failed sync the kernel may have dropped the data and forgotten it."""
        assert self._file is not None
        self._left = None
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
        self._note_extent()

    def _note_extent(self) -> None:
        """Note how the segment is left; what cannot be known is noticed as a change before the next write."""
        assert self._file is not None
        with suppress(OSError):
            found = Extent.of(os.fstat(self._file))
            self._left = found if found.size == self._size else None

    def _begin_segment(self, first: int) -> None:
        self._forget()
        name = segment_name(first)
        file = self._folder.file(name, make=True)
        try:
            _check_empty(file, name)
            self._folder.sync()
        except BaseException:
            os.close(file)
            raise
        self._file, self._name, self._size, self._doubtful = file, name, 0, False
        self._note_extent()

    def _recover(self) -> None:
        """Take up the chain where the files on disk end; where that cannot be known, none is open for writing.

        What an enforcer before us wrote may not have reached the disk yet: it has, before anything is added to it.
        """
        self._let_go()
        self._take_hold()
        self._folder.sync()
        names = self._folder.names()
        self._head = self._mended(names)
        if names:
            self._file, self._name = self._folder.file(names[-1]), names[-1]
            self._size = os.fstat(self._file).st_size
            self._note_extent()
        self._doomed = deque(self._condemned(names))

    def _mended(self, names: Sequence[str]) -> ChainHead:
        """Where the chain ends, after what a crash left of unfinished lines was cut off."""
        for name in reversed(names):
            unwanted = self._head.seq + 1 if self._doubtful and name == self._name else None
            head, rest = recovery.repair_torn_tail(self._folder, name, unwanted)
            self._torn.extend([rest] if rest else [])
            if head is not None:
                return head
        return GENESIS

    def _surplus(self) -> list[str]:
        """Names of the segments that are not to be kept, the oldest first."""
        names = [name for name in self._folder.names() if name <= self._name and name not in self._doomed]
        now, found = time.time(), [self._folder.found(name) for name in names]
        kept = [SegmentInfo(each.st_size, now - each.st_mtime) for each in found]
        if not self._retention.expired(kept[:-1]):
            return []
        # The record of it begins a segment, so that the present one counts too: else each restart would remove more.
        return names[: self._retention.expired(kept if self._size else kept[:-1])]

    def _removed(self, names: Sequence[str]) -> dict[str, Any] | None:
        """What a PRUNED record says of these segments; ``None`` where that cannot be known, so that they stay."""
        after = next((name for name in self._folder.names() if name > names[-1]), None)
        follower = None if after is None else self._first_record(after)
        if follower is None or (first := first_of(names[0])) is None:
            return None
        size = sum(self._folder.found(name).st_size for name in names)
        last = {"last": follower["seq"] - 1, "hash": follower["prev"]}
        return {"segments": len(names), "bytes": size, "first": first, **last}

    def _condemned(self, names: Sequence[str]) -> list[str]:
        """Names of segments that were recorded as removed and are still there."""
        for name in reversed(names):
            record = self._first_record(name)
            if record is not None and record["kind"] == Kind.PRUNED and isinstance(record.get(REMOVED), dict):
                last = record[REMOVED].get("last")
                return [
                    each
                    for each in names
                    if isinstance(last, int) and (first_of(each) or last + 1) <= last < record["seq"]
                ]
        return []

    def _first_record(self, name: str) -> dict[str, Any] | None:
        file = self._folder.file(name)
        try:
            record = read(os.pread(file, MAX_BYTES, 0).partition(b"\n")[0] + b"\n")
        except RecordError:  # finding edits is verify's business
            return None
        finally:
            os.close(file)
        return record if record["seq"] == first_of(name) else None

    def _tend(self) -> None:
        """Remove what is recorded as removed, and reserve space. What fails is tried again after the next record."""
        with suppress(OSError):
            while self._doomed:
                # One after the other, durably: whatever crashes, what is left is the end of the log and has no hole.
                self._folder.remove(self._doomed[0])
                self._folder.sync()
                self._doomed.popleft()
        self._reserve.allocate()

    def _take_hold(self) -> None:
        self._folder.open()
        self._reserve.probe()

    def _forget(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
        self._file = self._left = None

    def _let_go(self) -> None:
        """Forget the directory too: another may stand in its place by now."""
        self._forget()
        self._folder.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what the operating system says into a ``RecordError``, and remember what hinders us."""
        try:
            yield
        except OSError as error:
            self.problem = f"the enforcer cannot write the audit log in {self._folder.path}: {error}"
            raise RecordError(self.problem) from error
        except RecordError as error:
            self.problem = error.message
            raise
        self.problem = None


def _check_empty(file: int, name: str) -> None:
    if os.fstat(file).st_size:
        raise RecordError(
            f"the audit log's next file, {name}, already exists and is not empty; move it to another directory"
        )


def _write_whole(file: int, data: bytes) -> None:
    """A write to a filling disk may be short: go on until it is whole or fails."""
    while data:
        data = data[os.write(file, data) :]


def _recent(paths: Sequence[Path]) -> list[Path]:
    """The last segments, up to where they are long enough together to hold every INTENT that may be open."""
    found: list[Path] = []
    size = 0
    for path in reversed(paths):
        if size > RECENT_BYTES:
            break
        found.insert(0, path)
        size += path.stat().st_size
    return found


def _unfinished(files: Sequence[Path]) -> list[dict[str, Any]]:
    """INTENT records without an answer."""
    open_: dict[int, dict[str, Any]] = {}
    for record in _records(files, OF_INTENTS):
        if record["kind"] == Kind.INTENT:
            open_[record["seq"]] = record
        elif record["kind"] in {Kind.ABORTED, Kind.OUTCOME} and isinstance(answered := record.get("intent"), int):
            open_.pop(answered, None)
    return list(open_.values())


def _records(files: Sequence[Path], having: Sequence[bytes] = (b"",)) -> Iterator[dict[str, Any]]:
    """Read records; of all but those that have one of these words in them nothing more is known."""
    for line in (each for each in chain.from_iterable(map(lines_of, files)) if any(word in each for word in having)):
        with suppress(RecordError):  # finding edits is verify's business
            yield read(line)
