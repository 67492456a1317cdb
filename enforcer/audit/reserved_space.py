"""Space reserved for the audit log: a file whose blocks are allocated while there are some, for when there are none."""

import ctypes
import os
from contextlib import suppress
from typing import Final

from enforcer.audit.segments import LogFolder
from gpushare.errors import RecordError

NAME: Final = "reserve"
BYTES: Final = 256 * 1024
"""Room for 64 of the longest records, and for hundreds as they mostly are."""
_KEEP_SIZE: Final = 1
_BLOCK: Final = 512


def preallocate(file: int, size: int) -> None:
    """Allocate blocks beyond a file's end; its length stays. Raises ``OSError``, so where the file system cannot."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(file, _KEEP_SIZE, 0, size):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class ReservedSpace:
    """The reserved file, in the log's own folder. It becomes the next segment where the disk has no room for one."""

    def __init__(self, folder: LogFolder, size: int = BYTES) -> None:
        self._folder, self._size = folder, size
        self._there = False
        self.problem: str | None = None
        """Why nothing is reserved; ``None`` while something is."""

    def probe(self) -> None:
        """Find out whether space is reserved, after the folder was opened again."""
        self._there = False
        with suppress(OSError):
            self._there = self._folder.is_free(NAME) and self._folder.found(NAME).st_blocks > 0

    def allocate(self) -> None:
        """Reserve space unless that is done. What hinders it is remembered, not raised."""
        if self._there or not self._size:
            return
        try:
            self._fill()
        except (OSError, RecordError) as error:
            self.problem = f"the enforcer cannot reserve disk space for the audit log in {self._folder.path}: {error}"
        else:
            self._there, self.problem = True, None

    def promote(self, name: str) -> bool:
        """Turn it into the segment of that name; false where none is reserved or the name is taken."""
        if not self._there or not self._folder.is_free(name):
            return False
        self._there = False
        self._folder.rename(NAME, name)
        self.problem = (
            f"the disk of {self._folder.path} is full, and the audit log uses its last reserved space; free disk space"
        )
        return True

    def _fill(self) -> None:
        """Raises ``OSError`` where there is no room, ``RecordError`` where something else has the name."""
        file = self._folder.file(NAME, make=True)
        try:
            found = os.fstat(file)
            if found.st_size:
                raise FileExistsError(f"file {NAME} exists and is not empty; move the file away")
            if found.st_blocks * _BLOCK < self._size:
                preallocate(file, self._size)
            os.fsync(file)
            self._folder.sync()
        except OSError:
            # What is left of it would take the last room of a filling disk without being of use.
            with suppress(OSError):
                if not os.fstat(file).st_size:
                    self._folder.remove(NAME)
            raise
        finally:
            os.close(file)
