"""The end of a segment, and what a crash may leave there of a record that nobody was told of.

Only one line is ever not yet durable, and no other is written before it is, or is taken back. So a crash leaves it cut
short, or whole with holes where blocks of it never reached the disk, or back although it had been taken back.
"""

import hashlib
import os
from typing import Any, Final

from enforcer.logfolder import LogFolder
from enforcer.record import MAX_BYTES, Head, head_of, read
from gpushare.errors import RecordError
from gpushare.reasons import Reason

_ASIDE: Final = "move the folder aside to begin a new log"
_HOLE: Final = b"\0"
"""What a block that never reached the disk reads as; no record holds it."""


def mend_last(folder: LogFolder, name: str) -> tuple[Head | None, bytes]:
    """Where a segment leaves the chain, durably, and what was cut off its end; ``None`` where it holds no record.

    Raises:
        OSError: the file system says so.
        RecordError: its last record does not hold.
    """
    file = folder.file(name)
    try:
        size = os.fstat(file).st_size
        last, rest = _tail(file, size)
        if len(rest) > MAX_BYTES:
            raise RecordError(f"{name} ends in {len(rest)} bytes that are no line; {_ASIDE}")
        head = head_of(_trusted(name, last)) if last else None
        _cut(file, size, rest)
        os.fsync(file)
        return head, rest
    finally:
        os.close(file)


def mend_former(folder: LogFolder, name: str, limit: int) -> bytes:
    """Cut off, durably, what came back at the end of a segment that another follows; returns it.

    Args:
        folder: of the log.
        name: of the segment.
        limit: number of the record that the segment after it begins with.

    Raises:
        OSError: the file system says so.
        RecordError: it is no plain file of ours.
    """
    file = folder.file(name)
    try:
        size = os.fstat(file).st_size
        last, rest = _tail(file, size)
        if not rest and _number(last) == limit:
            rest = last
        if not rest or len(rest) > MAX_BYTES:
            return b""  # what else is wrong with it is for verifying to find
        _cut(file, size, rest)
        os.fsync(file)
        return rest
    finally:
        os.close(file)


def lost(rest: bytes) -> dict[str, Any]:
    """What a RECOVERED record says of what was cut off."""
    note = "an unfinished line was cut off: a crash, or a disk that was full"
    digest = "sha256:" + hashlib.sha256(rest).hexdigest()
    return {"reason": str(Reason.RECOVERED), "note": note, "lostBytes": len(rest), "lost": digest}


def _tail(file: int, size: int) -> tuple[bytes, bytes]:
    """The last whole line of a segment, and what stands after it."""
    data = os.pread(file, 3 * MAX_BYTES, max(0, size - 3 * MAX_BYTES))
    body, newline, rest = data.rpartition(b"\n")
    before, _, last = body.rpartition(b"\n")
    if not rest and _HOLE in last:
        return (before[before.rfind(b"\n") + 1 :] + newline if before else b""), last + newline
    return (last + newline), rest


def _cut(file: int, size: int, rest: bytes) -> None:
    if rest:
        os.ftruncate(file, size - len(rest))


def _number(line: bytes) -> int | None:
    try:
        number: int = read(line)["seq"]
    except RecordError:
        return None
    return number


def _trusted(name: str, line: bytes) -> dict[str, Any]:
    try:
        return read(line)
    except RecordError as error:
        raise RecordError(f"the last record of {name} does not hold: {error.message}; {_ASIDE}") from error
