"""A file system of one folder in which the power may fail at any moment: a small model over recorded system calls.

``Recorder`` notes what is done to a folder while the real calls go through: files made, written to, cut, renamed,
removed, synced. ``states`` then builds what may be on the disk if the power fails after any of them: of what was not
synced any part may be there, a file's length may be ahead of its data (which then reads as zeros), and entries of the
folder may be there or not, in any combination. Data whose sync failed may be lost for good without any later sync
saying so. A rename is whole or not at all.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.audit import reserved_space

SECTOR: Final = 512
MAX_VARIANTS: Final = 24
"""Contents of one file that are kept apart; of more, these are drawn by chance."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Holed:
    """What is left of a write: some of its sectors, and the length it gave the file."""

    end: int
    parts: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A file made this long."""

    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A name that leads to a file from now on; ``None``: to none. ``freed``: a name that a rename frees as it does."""

    name: str
    file: int | None
    freed: str | None = None


@dataclass(slots=True)
class Disk:
    """What is on the disk for certain, and what may be."""

    files: dict[int, list[bytes]] = field(default_factory=dict)
    """By file: every content that may be there if nothing else reached the disk."""
    waiting: dict[int, list[Write | Cut]] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    moving: list[Entry] = field(default_factory=list)
    founded: bool = False
    """Whether the folder itself is there."""


Op = Callable[[Disk], None]
State = dict[str, bytes] | None
"""The folder's files by name; ``None``: there is no folder."""


class Killed(BaseException):
    """The process is no more."""


@dataclass(slots=True, kw_only=True)
class Fate:
    """What goes wrong. Chances are asked of ``chance`` at each call; ``full`` is set from outside."""

    chance: random.Random
    sync: float = 0.0
    cut: float = 0.0
    killed: float = 0.0
    full: bool = False
    room: dict[int, int] = field(default_factory=dict)
    """Bytes set aside by file."""

    def befalls(self, share: float) -> bool:
        """Whether it happens this time."""
        return share > 0 and self.chance.random() < share


class Recorder:
    """Notes what is done to one folder while ``watching``."""

    def __init__(self, folder: Path, fate: Fate, before: State = None) -> None:
        self.folder, self.fate = folder, fate
        self.ops: list[Op] = []
        self.failed = 0
        """Syncs that failed."""
        self._names: dict[str, int] = {}
        self._sizes: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._folders: set[int] = set()
        self._parents: set[int] = set()
        self.start = Disk()
        self._ids = itertools.count()
        for name, data in (before or {}).items():
            number = next(self._ids)
            self._names[name], self._sizes[number] = number, len(data)
            self.start.files[number], self.start.entries[name] = [data], number
        self.start.founded = before is not None

    def note_later(self, note: Callable[[], None]) -> None:
        """Note something that is no system call; ``note`` is called when the states after it are built."""
        self.ops.append(lambda _: note())

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take the system calls' place."""
        calls: Mapping[str, Callable[..., Any]] = {
            "open": self._do_open, "close": self._do_close, "write": self._do_write, "pwrite": self._do_pwrite,
            "ftruncate": self._do_cut, "fdatasync": self._do_sync, "fsync": self._do_sync,
            "rename": self._do_rename, "unlink": self._do_unlink,
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, call in calls.items():
                patch.setattr(os, name, self._mortal(getattr(os, name), call))
            patch.setattr(reserved_space, "preallocate", self._do_preallocate)
            yield

    def _mortal(self, real: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **named: Any) -> Any:
            if real is not _CLOSE and self.fate.befalls(self.fate.killed):
                self._die(real, *args)
            return call(real, *args, **named)

        return done

    def _die(self, real: Callable[..., Any], *args: Any) -> None:
        """A process may be killed in the middle of a write."""
        if real is _WRITE and args[0] in self._open:
            part = args[1][: self.fate.chance.randrange(len(args[1]) + 1)]
            if part and not self.fate.full:
                self._note_write(args[0], part)
                _WRITE(args[0], part)
        raise Killed

    def _do_open(self, real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = dir_fd in self._folders
        if inside and flags & os.O_CREAT and self.fate.full and path not in self._names:
            raise OSError(errno.ENOSPC, "No space left on device")
        file: int = real(path, flags, mode, dir_fd=dir_fd)
        if inside:
            if path not in self._names:
                self._make(path)
            self._open[file] = self._names[path]
        elif Path(path) == self.folder:
            self._folders.add(file)
            self.ops.append(_nothing)
        elif Path(path) == self.folder.parent:
            self._parents.add(file)
        return file

    def _make(self, name: str) -> None:
        number = self._names[name] = next(self._ids)
        self._sizes[number] = 0

        def op(disk: Disk) -> None:
            disk.files[number] = [b""]
            disk.moving.append(Entry(name, number))

        self.ops.append(op)

    def _do_close(self, real: Any, file: int) -> None:
        self._open.pop(file, None)
        self._folders.discard(file)
        self._parents.discard(file)
        real(file)

    def _do_write(self, real: Any, file: int, data: bytes) -> int:
        if (number := self._open.get(file)) is None:
            return int(real(file, data))
        if self.fate.full:
            room = self.fate.room.get(number, 0)
            if not room:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[:room]
            self.fate.room[number] = room - len(data)
        self._note_write(file, data)
        return int(real(file, data))

    def _note_write(self, file: int, data: bytes) -> None:
        number = self._open[file]
        offset = self._sizes[number]
        self._sizes[number] += len(data)
        self.ops.append(lambda disk: disk.waiting.setdefault(number, []).append(Write(offset, data)))

    def _do_pwrite(self, real: Any, file: int, data: bytes, offset: int) -> int:
        number = self._open[file]
        self.ops.append(lambda disk: disk.waiting.setdefault(number, []).append(Write(offset, data)))
        return int(real(file, data, offset))

    def _do_cut(self, real: Any, file: int, size: int) -> None:
        number = self._open[file]
        if self.fate.befalls(self.fate.cut):
            raise OSError(errno.EIO, "Input/output error")
        self._sizes[number] = size
        self.ops.append(lambda disk: disk.waiting.setdefault(number, []).append(Cut(size)))
        real(file, size)

    def _do_sync(self, real: Any, file: int) -> None:
        failed = self.fate.befalls(self.fate.sync)
        self.failed += failed
        if file in self._folders and not failed:
            self.ops.append(_settle_entries)
        elif file in self._parents:
            self.ops.append(_found)
        elif (number := self._open.get(file)) is not None:
            self.ops.append(lambda disk: _settle_file(disk, number, failed=failed))
        if failed and file not in self._parents:
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    def _do_rename(self, real: Any, old: str, new: str, **named: Any) -> None:
        number = self._names[new] = self._names.pop(old)
        self.ops.append(lambda disk: disk.moving.append(Entry(new, number, freed=old)))
        real(old, new, **named)

    def _do_unlink(self, real: Any, name: str, *, dir_fd: int | None = None) -> None:
        if dir_fd in self._folders:
            self._names.pop(name, None)
            self.ops.append(lambda disk: disk.moving.append(Entry(name, None)))
        real(name, dir_fd=dir_fd)

    def _do_preallocate(self, file: int, size: int) -> None:
        if self.fate.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fate.room[self._open[file]] = size
        reserve_blocks(file, size)


_CLOSE, _WRITE = os.close, os.write
reserve_blocks = reserved_space.preallocate


def _nothing(_: Disk) -> None:
    """A moment like any other."""


def _found(disk: Disk) -> None:
    disk.founded = True


def _settle_entries(disk: Disk) -> None:
    _apply(disk.entries, disk.moving)
    disk.moving = []


def _settle_file(disk: Disk, number: int, *, failed: bool) -> None:
    """After a sync that failed any part of the data may be there, for good; no later one makes up for it.

    A file's length is the file system's own matter: it goes on waiting.
    """
    waiting = disk.waiting.pop(number, [])
    if failed:
        disk.files[number] = _some(list(_variants(disk.files[number], waiting)))
        disk.waiting[number] = [op for at, op in enumerate(waiting) if isinstance(op, Cut) and _last(op, waiting[at:])]
    else:
        disk.files[number] = _some([_content(data, waiting) for data in disk.files[number]])


def _last(cut: Cut, later: Sequence[Write | Cut]) -> bool:
    return all(op.offset + len(op.data) <= cut.size for op in later if isinstance(op, Write))


def _apply(entries: dict[str, int], moves: Sequence[Entry]) -> None:
    for each in moves:
        if each.freed is not None:
            entries.pop(each.freed, None)
        if each.file is None:
            entries.pop(each.name, None)
        else:
            entries[each.name] = each.file


def _content(data: bytes, ops: Sequence[Write | Holed | Cut]) -> bytes:
    for op in ops:
        if isinstance(op, Cut):
            data = _extended(data, op.size)[: op.size]
        elif isinstance(op, Holed):
            data = _content(_extended(data, op.end), op.parts)
        else:
            data = _extended(data, op.offset)
            data = data[: op.offset] + op.data + data[op.offset + len(op.data) :]
    return data


def _extended(data: bytes, size: int) -> bytes:
    return data + bytes(max(0, size - len(data)))


def _variants(bases: Sequence[bytes], ops: Sequence[Write | Cut]) -> Iterator[bytes]:
    """Every subset of what waits, with each write whole, cut anywhere that matters, or with holes."""
    choices = [[None, *(_torn(op) if isinstance(op, Write) else [op])] for op in ops]
    for base in bases:
        for chosen in itertools.islice(itertools.product(*choices), 4096):
            yield _content(base, [op for op in chosen if op is not None])


def _torn(op: Write) -> list[Write | Holed | Cut]:
    """What may be left of a write: the file system's sectors are those of the file."""
    ends = sorted({1, len(op.data) // 2, len(op.data) - 1, *_borders(op), len(op.data)} - {0})
    bounds = [0, *_borders(op), len(op.data)]
    parts = [Write(op.offset + a, op.data[a:b]) for a, b in itertools.pairwise(bounds)]
    kept = (itertools.compress(parts, some) for some in itertools.product((0, 1), repeat=len(parts)))
    prefixes = [Write(op.offset, op.data[:end]) for end in ends]
    return [*prefixes, *(Holed(op.offset + len(op.data), tuple(some)) for some in kept)]


def _borders(op: Write) -> list[int]:
    return list(range(SECTOR - op.offset % SECTOR, len(op.data), SECTOR))


def _some(found: list[bytes], chance: random.Random | None = None, most: int = MAX_VARIANTS) -> list[bytes]:
    different = list(dict.fromkeys(found))
    return different if len(different) <= most else (chance or random.Random(len(found))).sample(different, most)


def states(recorder: Recorder, chance: random.Random, most: int) -> Iterator[tuple[int, State]]:
    """What may be on the disk when the power fails after each call: its number, and up to ``most`` states each."""
    disk = recorder.start
    for number, op in enumerate([_nothing, *recorder.ops]):
        op(disk)
        seen: set[tuple[tuple[str, bytes], ...]] = set()
        for state in _states_now(disk, chance, most):
            key = tuple(sorted((state or {"": b""}).items()))
            if key not in seen:
                seen.add(key)
                yield number, state


def _states_now(disk: Disk, chance: random.Random, most: int) -> Iterator[State]:
    if not disk.founded:
        yield None
    listings = []
    for chosen in itertools.product((0, 1), repeat=len(disk.moving)):
        entries = dict(disk.entries)
        _apply(entries, [move for move, there in zip(disk.moving, chosen, strict=True) if there])
        listings.append(entries)
    for entries in listings if len(listings) <= most else chance.sample(listings, most):
        contents = {
            name: _some(list(_variants(disk.files[file], disk.waiting.get(file, []))), chance, most)
            for name, file in entries.items()
        }
        every = list(itertools.islice(itertools.product(*contents.values()), 2048))
        for chosen_ in every if len(every) <= most else chance.sample(every, most):
            yield dict(zip(contents, chosen_, strict=True))


def build(folder: Path, state: State) -> None:
    """Put that on a disk."""
    if state is not None:
        folder.mkdir(mode=0o700)
        for name, data in state.items():
            (folder / name).write_bytes(data)
