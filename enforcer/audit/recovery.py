"""The end of a segment, and what a crash may leave there of a record that was never reported as durable.

Only one line is ever not yet durable, and no other is written before it is, or is taken back. So a crash leaves it cut
short, or whole with holes where blocks of it never reached the disk, or back although it had been taken back.
"""

import hashlib
import os
from typing import Any, Final

from enforcer.audit.record import MAX_BYTES, ChainHead, head_of, read
from enforcer.audit.segments import LogFolder
from gpushare.errors import RecordError
from gpushare.reasons import Reason

_WAY_OUT: Final = "move the folder of the audit log away, and the enforcer begins a new log"
_HOLE: Final = b"\0"
"""What a block that never reached the disk reads as; no record holds it."""


def repair_torn_tail(folder: LogFolder, name: str, unwanted: int | None = None) -> tuple[ChainHead | None, bytes]:
    """Where a segment leaves the chain, durably, and what was cut off its end; ``None`` where it holds no record.

    Args:
        folder: of the log.
        name: of the segment.
        unwanted: number of a record that was not durable in time, and was taken back.

    Raises:
        OSError: the file system says so.
        RecordError: its last record does not hold.
    """
    file = folder.file(name, appending=False)
    try:
        size = os.fstat(file).st_size
        last, rest = _tail(file, size, unwanted)
        if len(rest) > MAX_BYTES:
            raise RecordError(
                f"segment {name} ends in {len(rest)} bytes without a newline, more than one incomplete record "
                f"can have; {_WAY_OUT}"
            )
        head = head_of(_trusted(name, last)) if last else None
        if rest:
            os.ftruncate(file, size - len(rest))
        _write_again(file, last, size - len(rest) - len(last))
        os.fsync(file)
        return head, rest
    finally:
        os.close(file)


def _write_again(file: int, line: bytes, offset: int) -> None:
    """What is read need not be on the disk: where a sync failed, the kernel thinks it is, and no later one says so."""
    while line:
        written = os.pwrite(file, line, offset)
        line, offset = line[written:], offset + written


def lost_fields(rest: bytes) -> dict[str, Any]:
    """What a RECOVERED record says of what was cut off."""
    note = "the enforcer cut off an incomplete last line, which a crash or a full disk had left"
    digest = "sha256:" + hashlib.sha256(rest).hexdigest()
    return {"reason": str(Reason.RECOVERED), "note": note, "lostBytes": len(rest), "lost": digest}


def _tail(file: int, size: int, unwanted: int | None) -> tuple[bytes, bytes]:
    """The last whole line of a segment that counts, and what stands after it."""
    data = os.pread(file, 3 * MAX_BYTES, max(0, size - 3 * MAX_BYTES))
    body, newline, rest = data.rpartition(b"\n")
    before, former, last = body.rpartition(b"\n")
    last += newline
    if rest or not last or not (_HOLE in last or (unwanted is not None and _number(last) == unwanted)):
        return last, rest
    return before[before.rfind(b"\n") + 1 :] + former, last


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
        raise RecordError(f"the last record of segment {name} is invalid: {error.message}; {_WAY_OUT}") from error
