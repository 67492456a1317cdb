"""``python -m tests.support.full_disk FILLS SEED``: an audit log on a small disk of its own that is filled repeatedly.

Run in a mount namespace of its own (``unshare --mount``): a tmpfs of a random size for each batch, filled up to a
random byte, with syncs that fail and a file system that turns read-only now and then. After each record asked for, what
the log acknowledged is read back from the files before the signal it allows is counted. Prints one JSON object.
"""

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import ChainHead, Kind, read, verify
from enforcer.audit.reserved_space import NAME as RESERVED
from gpushare.errors import RecordError

BATCH: Final = 20
"""Fills of one disk."""
SIZES: Final = (64, 96, 128, 256, 1024)
"""KiB."""
RESERVE: Final = 16 * 1024
ROOM: Final = 16 * 1024
"""Bytes that a disk must have left for another fill: what a fill leaves free, and the segments that it makes."""
PLACE: Final = Path("/mnt")


def main(argv: list[str]) -> int:
    """Run all fills."""
    fills, chance = int(argv[0]), random.Random(int(argv[1]))
    counts: dict[str, Any] = dict.fromkeys(
        ("fills", "signals", "unrecorded", "refused", "reserve", "resumed", "lost"), 0
    )
    counts["broken"] = []
    while counts["fills"] < fills:
        with _disk(chance.choice(SIZES)) as disk:
            _Batch(disk, chance, counts).run(min(BATCH, fills - counts["fills"]))
    print(json.dumps(counts))
    return 0


@contextmanager
def _disk(kib: int) -> Iterator[Path]:
    options = ["-t", "tmpfs", "-o", f"size={kib}k,mode=0700", "tmpfs", str(PLACE)]
    subprocess.run(["mount", *options], check=True)
    try:
        yield PLACE
    finally:
        subprocess.run(["umount", str(PLACE)], check=True)


class _Batch:
    """One disk, one log."""

    def __init__(self, disk: Path, chance: random.Random, counts: dict[str, Any]) -> None:
        self._disk, self._chance, self._counts = disk, chance, counts
        self._folder = disk / "audit"
        self._log = AuditLog(self._folder, segment_bytes=8000, reserve_bytes=RESERVE)
        self._heads: list[ChainHead] = []

    def run(self, fills: int) -> None:
        self._log.open()
        for _ in range(fills):
            if self._room() < RESERVE + ROOM:
                break  # the log itself has filled this disk: the next
            self._fill()
            self._counts["fills"] += 1
            trouble = self._chance.choice(("none", "none", "sync", "read-only", "restart"))
            self._ask(self._chance.randint(1, 60), trouble)
            (self._disk / "filler").unlink(missing_ok=True)
            self._resume()
        self._log.close()
        self._check()

    def _fill(self) -> None:
        """Leave a random number of bytes, to the byte where the last page is a segment's."""
        room = self._room()
        left = self._chance.choice((0, 0, self._chance.randint(0, 3 * 4096)))
        with suppress(OSError), (self._disk / "filler").open("wb") as file:
            file.write(bytes(max(0, room - left)))

    def _ask(self, records: int, trouble: str) -> None:
        """Ask for records as an enforcer does; only what is acknowledged lets it send a signal."""
        if trouble == "restart":
            self._log.close()
        if trouble == "read-only":
            self._log.close()
            subprocess.run(["mount", "-o", "remount,ro", str(self._disk)], check=True)
        for number in range(records if trouble != "read-only" else 3):
            with _failing_sync(self._chance if trouble == "sync" else None):
                self._one(number)
        if trouble == "read-only":
            subprocess.run(["mount", "-o", "remount,rw", str(self._disk)], check=True)

    def _one(self, number: int) -> None:
        reserved = self._is_reserved()
        try:
            head = self._log.append(Kind.INTENT, {"pid": number, "note": "x" * self._chance.randint(0, 900)})
        except RecordError:
            self._counts["refused"] += 1
            return
        self._heads.append(head)
        self._counts["unrecorded"] += not self._on_disk(head)
        self._counts["signals"] += 1
        self._counts["reserve"] += reserved and not self._is_reserved()

    def _is_reserved(self) -> bool:
        return (self._folder / RESERVED).exists()

    def _on_disk(self, head: ChainHead) -> bool:
        last = [path for path in segments(self._folder) if path.stat().st_size][-1]
        record = read(last.read_bytes().splitlines(keepends=True)[-1])
        return (record["seq"], record["hash"]) == (head.seq, head.hash)

    def _resume(self) -> None:
        """There is room again: the next record is written, and room set aside once more."""
        with suppress(RecordError):
            self._heads.append(self._log.append(Kind.OUTCOME, {"note": "room again"}))
            self._counts["resumed"] += self._log.shortage is None

    def _check(self) -> None:
        with AuditLog(self._folder, reserve_bytes=0):
            lines = list(
                chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(self._folder))
            )
        result = verify(lines)
        self._counts["broken"] += [] if result.ok else [result.problem]
        there = {(record["seq"], record["hash"]) for record in map(read, lines)} if result.ok else set()
        self._counts["lost"] += sum((head.seq, head.hash) not in there for head in self._heads)

    def _room(self) -> int:
        found = os.statvfs(self._disk)
        return found.f_bavail * found.f_bsize


@contextmanager
def _failing_sync(chance: random.Random | None) -> Iterator[None]:
    real = os.fdatasync

    def failing(file: int) -> None:
        if chance is not None and chance.random() < 0.3:
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
