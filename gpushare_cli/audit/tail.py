"""Read an audit log on this machine as it grows: over rotations, repaired torn lines and removed segments."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from enforcer.audit.record import MAX_BYTES
from enforcer.audit.segments import segments
from gpushare.errors import ConfigError

AT_ONCE: Final = 256 * MAX_BYTES
"""Bytes read of one file at a time."""


class Tail:
    """Reads what it has not read before; the first time that is the whole log.

    Args:
        folder: of segments, or one segment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._name, self._offset = folder, "", 0

    def read(self) -> Iterator[bytes]:
        """Yield whole lines with their ends. A line that is still being written waits; an endless one is cut.

        Raises:
            ConfigError: there is no log there, or it cannot be read.
        """
        try:
            files = [self._folder] if self._folder.is_file() else segments(self._folder)
            if files and files[-1].name < self._name:  # the folder was moved away, and a new log begun
                self._name = ""
            for file in [each for each in files if each.name >= self._name]:
                if file.name != self._name:
                    self._name, self._offset = file.name, 0
                with suppress(FileNotFoundError):  # old segments are removed
                    yield from self._new_lines(file)
        except OSError as error:
            raise ConfigError(f"no audit log to follow in {self._folder}: {error.strerror}") from error

    def _new_lines(self, file: Path) -> Iterator[bytes]:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb"):
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{ascii(file.name)[1:-1]} is not a regular file")
            self._offset = min(self._offset, found.st_size)  # a torn tail was cut off
            while taken := _whole(os.pread(descriptor, AT_ONCE, self._offset)):
                self._offset += len(taken)
                yield from (line + b"\n" for line in taken.removesuffix(b"\n").split(b"\n"))


def _whole(data: bytes) -> bytes:
    """Cut off a line that is still being written; not one without end."""
    whole, newline, rest = data.rpartition(b"\n")
    return data if len(rest) > MAX_BYTES else whole + newline
