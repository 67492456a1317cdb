"""What MPS's daemons and servers write into their log files, passed on to our own log; and the files kept small.

It only reports: a tenant can have written any line (``log_parser``). It follows no link, waits for no pipe, and reads
a bounded piece at a time.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from enforcer.mps import log_parser
from enforcer.mps.launcher import FOLDER, folder_of
from enforcer.mps.log_parser import Line, Severity
from enforcer.mps.manager import MpsManager
from gpushare.reasons import Reason

LIMIT: Final = 8 * 1024 * 1024
"""Bytes on the disk from which on a file is cut: NVIDIA's programs never do."""
PIECE: Final = 256 * 1024
"""Bytes of a file read at one look; of more, the last ones."""
LINES: Final = 20
"""Lines of a file passed on at one look; the others are counted."""
BLOCK: Final = 512
CONTROL, SERVER = "control.log", "server.log"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Place:
    """How far a file was read. ``skipped``: bytes that nobody read, at the last look."""

    file: tuple[int, int]
    position: int = 0
    half: bytes = b""
    skipped: int = 0


class LogTail:
    """Follows the logs of a node's daemons. What stands in them already is another enforcer's news.

    Args:
        run: directory below which the daemons' directories are.
        manager: of the daemons.
        limit: bytes from which on a file is cut.
    """

    def __init__(self, run: Path, manager: MpsManager, limit: int = LIMIT) -> None:
        self._root, self._manager, self._limit = run / FOLDER, manager, limit
        self._failed: set[Path] = set()
        self._places: dict[Path, Place] = {}
        for folder in self._root.glob("*/log"):
            self._places |= {file: place for file in files(folder) if (place := _end(file)) is not None}

    def poll(self) -> None:
        """Pass on what is new in each file, and cut those that are too long."""
        for gpu in self._manager.daemons:
            for file in files(self._root / folder_of(gpu) / "log"):
                self._follow(gpu, file)

    def _follow(self, gpu: str, file: Path) -> None:
        try:
            lines = self._new(file)
        except FileNotFoundError:
            self._places.pop(file, None)
            return
        except OSError as error:
            if file not in self._failed:
                log.warning("MPS log not read", reason=str(Reason.MPS_LOG), gpu=gpu, file=str(file), error=str(error))
            self._failed.add(file)
            return
        self._failed.discard(file)
        _report(gpu, file.name, lines, self._places[file].skipped)

    def _new(self, file: Path) -> list[Line]:
        descriptor = _open(file, os.O_RDWR)
        try:
            about = os.fstat(descriptor)
            data, place = _read(descriptor, about, self._places.get(file))
            whole, half = log_parser.split(place.half, data)
            self._places[file] = replace(place, half=half)
            if about.st_blocks * BLOCK > self._limit and about.st_nlink == 1:
                # One that appends goes on at the front. One that does not leaves a hole before what it writes next,
                # which takes no room: so room is what counts, and not the file's length.
                os.ftruncate(descriptor, 0)
                self._places[file] = replace(place, half=half, position=0)
        finally:
            os.close(descriptor)
        return log_parser.parsed(whole)


def files(folder: Path) -> Iterator[Path]:
    """Yield the log files that a daemon's log directory may have, whether they exist or not."""
    yield from (folder / CONTROL, folder / SERVER)


def _open(file: Path, how: int) -> int:
    """Open a regular file in a directory, neither of them a link. Raises ``OSError``."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        descriptor = os.open(file.name, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{file} is not a regular file")
    return descriptor


def _end(file: Path) -> Place | None:
    try:
        descriptor = _open(file, os.O_RDONLY)
    except OSError:
        return None
    about = os.fstat(descriptor)
    os.close(descriptor)
    return Place(_identity(about), about.st_size)


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _read(descriptor: int, about: os.stat_result, before: Place | None) -> tuple[bytes, Place]:
    """Read on; from the front where it is another file than before, or a shorter one."""
    if before is None or before.file != _identity(about) or about.st_size < before.position:
        before = Place(_identity(about))
    begin = _data_from(descriptor, before.position)
    start = max(begin, about.st_size - PIECE)
    data = os.pread(descriptor, max(0, about.st_size - start), start)
    place = replace(before, position=start + len(data), skipped=start - begin)
    if place.skipped:
        return data.partition(b"\n")[2], replace(place, half=b"")
    # A hole ends with its block, what is written behind it somewhere in the next one.
    return data if before.position else data.lstrip(b"\0"), place


def _data_from(descriptor: int, position: int) -> int:
    """Return where something stands at or behind a position, beyond a hole."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:
        return position


def _report(gpu: str, file: str, lines: list[Line], skipped: int) -> None:
    shown, left = log_parser.most_severe(lines, LINES)
    named = log.bind(reason=str(Reason.MPS_LOG), gpu=gpu, file=file)
    say = {Severity.TROUBLE: named.warning, Severity.CHANGE: named.info, Severity.ROUTINE: named.debug}
    for line in shown:
        say[line.severity]("MPS log", line=line.text, at=line.at, by=line.by)
    if left or skipped:
        heaviest = max([*left, Severity.CHANGE if skipped else Severity.ROUTINE])
        counts = {severity.name.lower(): count for severity, count in left.items()}
        say[min(heaviest, Severity.CHANGE)]("MPS log: lines left out", left_out=counts, skipped_bytes=skipped)
