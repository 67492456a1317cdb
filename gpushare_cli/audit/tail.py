"""A kill log's end as it grows: over rotations, torn lines that are mended, and segments that come and go."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from enforcer.audit.log import segment_name, segments
from enforcer.audit.record import MAX_BYTES
from gpushare.errors import ConfigError
from gpushare_cli.audit.log_reader import missing, seq_of

AT_ONCE: Final = 256 * MAX_BYTES
"""Bytes read of one file at a time."""


class Tail:
    """Reads what was not read before; the first time that is all there is.

    Args:
        folder: of segments, or one segment.
        after: number of a record; it and all before it count as read, unless the log ends before it: then it is another
            log, which was begun since.
    """

    def __init__(self, folder: Path, after: int = 0) -> None:
        self._folder, self._after, self._last = folder, after, after
        self._name, self._offset = "", 0
        self.missing: list[str] = []
        """What to say of records that did not come; whoever says it empties this."""

    def read(self) -> Iterator[bytes]:
        """Yield whole lines with their ends; one that is still being written waits, one without end is cut.

        Raises:
            ConfigError: there is no log there, or what stands there cannot be read.
        """
        try:
            files = [self._folder] if self._folder.is_file() else segments(self._folder)
            if self._after and not self._name:
                self._skip(files)
            if files and files[-1].name < self._name:  # moved aside, and begun anew
                self._name = ""
            for file in [each for each in files if each.name >= self._name]:
                if file.name != self._name:
                    self._name, self._offset = file.name, 0
                with suppress(FileNotFoundError):  # old segments go
                    yield from filter(self._is_new, self._new_lines(file))
        except OSError as error:
            raise ConfigError(f"no kill log to follow in {self._folder}: {error.strerror}") from error

    def _skip(self, files: Sequence[Path]) -> None:
        """Begin with the segment that the next record is in, or has to be."""
        ends = _ends(files[-1]) if files else None
        if ends is not None and ends < self._after - 1:  # the last one may have been taken back, where a disk was full
            self._after = self._last = 0
            return
        before = [file.name for file in files if file.name <= segment_name(self._after + 1)]
        self._name = before[-1] if before else ""

    def _is_new(self, line: bytes) -> bool:
        """Whether a line stands behind the record that was read last."""
        seq = seq_of(line) or 0
        if self._after and seq > self._after:
            self._after = 0
        if not self._after and seq:
            self.missing += filter(None, [missing(self._last, seq)])
            self._last = seq
        return not self._after

    def _new_lines(self, file: Path) -> Iterator[bytes]:
        with _opened(file) as descriptor:
            self._offset = min(self._offset, os.fstat(descriptor).st_size)  # a torn tail was cut off
            while taken := _whole(os.pread(descriptor, AT_ONCE, self._offset)):
                self._offset += len(taken)
                yield from (line + b"\n" for line in taken.removesuffix(b"\n").split(b"\n"))


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{ascii(file.name)[1:-1]} is no plain file")
        yield descriptor
    finally:
        os.close(descriptor)


def _ends(file: Path) -> int | None:
    """Return the number of a segment's last record; ``None`` where its last line says none."""
    with _opened(file) as descriptor:
        data = os.pread(descriptor, 2 * MAX_BYTES, max(0, os.fstat(descriptor).st_size - 2 * MAX_BYTES))
    return seq_of(data.rpartition(b"\n")[0].rpartition(b"\n")[2])


def _whole(data: bytes) -> bytes:
    """Cut off a line that is still being written; not one without end."""
    whole, newline, rest = data.rpartition(b"\n")
    return data if len(rest) > MAX_BYTES else whole + newline
