"""A kill log's end as it grows: over rotations, torn lines that are mended, and segments that come and go."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from enforcer.killlog.audit import segments
from enforcer.killlog.record import MAX_BYTES
from gpushare.errors import ConfigError

AT_ONCE: Final = 256 * MAX_BYTES
"""Bytes read of one file at a time."""


class Tail:
    """Reads what was not read before; the first time that is all there is.

    Args:
        folder: of segments.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name, self._offset = "", 0

    def read(self) -> list[bytes]:
        """Return whole lines with their ends; one that is still being written waits, one without end is cut.

        Raises:
            ConfigError: there is no log there, or what stands there cannot be read.
        """
        lines: list[bytes] = []
        try:
            for file in [each for each in segments(self._folder) if each.name >= self._name]:
                if file.name != self._name:
                    self._name, self._offset = file.name, 0
                with suppress(FileNotFoundError):  # old segments go
                    lines += self._new_lines(file)
        except OSError as error:
            raise ConfigError(f"no kill log to follow in {self._folder}: {error.strerror}") from error
        return lines

    def _new_lines(self, file: Path) -> Iterator[bytes]:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{ascii(file.name)[1:-1]} is no plain file")
            self._offset = min(self._offset, found.st_size)  # a torn tail was cut off
            while taken := _whole(os.pread(descriptor, AT_ONCE, self._offset)):
                self._offset += len(taken)
                yield from (line + b"\n" for line in taken.removesuffix(b"\n").split(b"\n"))
        finally:
            os.close(descriptor)


def _whole(data: bytes) -> bytes:
    """Cut off a line that is still being written; not one without end."""
    whole, newline, rest = data.rpartition(b"\n")
    return data if len(rest) > MAX_BYTES else whole + newline
