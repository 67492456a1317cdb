"""The audit log's files and folder in the hands of an attacker: nothing is ever written anywhere else."""

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from enforcer.audit import reserved_space
from enforcer.audit.log import FOLDER, AuditLog, segment_name, segments
from enforcer.audit.record import Kind
from enforcer.audit.retention import Retention
from gpushare.errors import RecordError
from tests.support import extent
from tests.support.need import missing

MEMORY = Path("/dev/shm")
SMALL: Final = 300
"""Bytes of a segment that no two records fit."""
LARGE: Final = 5000
Attack = Callable[[Path, Path], None]
Sight = dict[str, tuple[int, bytes]]


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    (path / "outside" / FOLDER).mkdir(parents=True)
    for name in ("precious", f"{FOLDER}/precious", f"{FOLDER}/{segment_name(1)}", f"{FOLDER}/{reserved_space.NAME}"):
        (path / "outside" / name).write_text("precious\n")
    (path / "outside" / "empty").touch()
    for folder in (path / "outside", path / "outside" / FOLDER):
        folder.chmod(0o700)
    yield path
    shutil.rmtree(path)


def seen(outside: Path) -> Sight:
    """Every file out there: kind and mode, content."""
    found = {}
    for path in sorted(outside.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path.relative_to(outside))] = (status.st_mode, content)
    return found


def _free(path: Path) -> Path:
    if path.is_symlink() or path.exists():
        path.rename(path.with_name(f"aside-{path.name}"))
    return path


def _next(folder: Path) -> Path:
    """Where the next segment goes, if records go on."""
    return folder / segment_name(3)


def link_at_segment(folder: Path, outside: Path) -> None:
    _free(segments(folder)[-1]).symlink_to(outside / "precious")


def link_at_next(folder: Path, outside: Path) -> None:
    _next(folder).symlink_to(outside / "not there yet")


def link_at_reserve(folder: Path, outside: Path) -> None:
    _free(folder / reserved_space.NAME).symlink_to(outside / "precious")


def hard_link_at_segment(folder: Path, outside: Path) -> None:
    _free(segments(folder)[-1]).hardlink_to(outside / "precious")


def hard_link_at_next(folder: Path, outside: Path) -> None:
    _next(folder).hardlink_to(outside / "precious")


def hard_link_to_nothing_at_next(folder: Path, outside: Path) -> None:
    _next(folder).hardlink_to(outside / "empty")


def hard_link_at_reserve(folder: Path, outside: Path) -> None:
    _free(folder / reserved_space.NAME).hardlink_to(outside / "precious")


def hard_link_of_segment(folder: Path, outside: Path) -> None:
    (outside / "stolen").hardlink_to(segments(folder)[-1])


def fifo_at_segment(folder: Path, outside: Path) -> None:
    os.mkfifo(_free(segments(folder)[-1]))


def fifo_at_next(folder: Path, outside: Path) -> None:
    os.mkfifo(_next(folder))


def device_at_next(folder: Path, outside: Path) -> None:
    os.mknod(_next(folder), stat.S_IFCHR | 0o600, os.makedev(1, 3))


def folder_at_next(folder: Path, outside: Path) -> None:
    _next(folder).mkdir()


def link_at_folder(folder: Path, outside: Path) -> None:
    _free(folder).symlink_to(outside / FOLDER)


def other_at_folder(folder: Path, outside: Path) -> None:
    _free(folder).mkdir(mode=0o777)
    folder.chmod(0o777)


def file_at_folder(folder: Path, outside: Path) -> None:
    _free(folder).write_text("")


ATTACKS = (
    link_at_segment, link_at_next, link_at_reserve, hard_link_at_segment, hard_link_at_next,
    hard_link_to_nothing_at_next, hard_link_at_reserve, hard_link_of_segment, fifo_at_segment, fifo_at_next,
    device_at_next, folder_at_next, link_at_folder, other_at_folder, file_at_folder,
)  # fmt: skip


def attacked(place: Path, attack: Attack, chance: random.Random) -> bool:
    """One log, one attack; returns whether records could still be written meanwhile."""
    state, outside = place / "state", place / "outside"
    state.mkdir(mode=0o700)
    folder = state / FOLDER
    size, keep = chance.choice([SMALL, LARGE]), Retention(segments=chance.choice([0, 1]))
    log = AuditLog(folder, segment_bytes=size, reserve_bytes=4096, retention=keep)
    log.append(Kind.INTENT, {"n": 1})
    log.append(Kind.OUTCOME, {"n": 2})
    if chance.random() < 0.3:
        log.close()
    attack(folder, outside)
    before = seen(outside)
    written = 0
    for kind in (Kind.INTENT, Kind.OUTCOME, Kind.INTENT, Kind.OUTCOME):
        with suppress(RecordError):
            log.append(kind, {"n": 3})
            written += 1
    assert seen(outside) == before, attack.__name__
    log.close()
    (outside / "stolen").unlink(missing_ok=True)
    shutil.rmtree(state)
    state.mkdir(mode=0o700)
    log.append(Kind.INTENT, {"n": 4})
    assert segments(folder), "alive, and writing again once the attacker is gone"
    log.close()
    shutil.rmtree(state)
    return written > 0


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_is_written_outside_of_the_folder(attack: Attack, place: Path) -> None:
    if attack is device_at_next and os.geteuid() != 0:
        missing("device files are root's to make")
    chance, trials = random.Random(attack.__name__), extent.trials(10, 350)
    served = sum(attacked(place, attack, chance) for _ in range(trials))
    extent.figure(
        "38", f"writes outside, {attack.__name__.replace('_', ' ')}", f"0 in {trials:,}; served in {served:,}"
    )


SWAPPING = """
import os, shutil, sys, contextlib
folder, outside, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    aside = f"{folder}-{number}"
    with contextlib.suppress(OSError):
        os.rename(folder, aside)
    with contextlib.suppress(OSError):
        os.symlink(outside, folder)
    if number % 3:
        with contextlib.suppress(OSError):
            os.unlink(folder)
    with contextlib.suppress(OSError):
        os.rename(aside, folder)
    if number % 7 == 0:
        shutil.rmtree(aside, ignore_errors=True)
    if os.path.islink(folder):
        os.unlink(folder)
"""


def test_a_folder_that_is_swapped_all_the_time_lets_nothing_out(place: Path) -> None:
    swaps, outside = extent.trials(300, 10_000), place / "outside"
    (place / "state").mkdir(mode=0o700)
    folder = place / "state" / FOLDER
    log = AuditLog(folder, segment_bytes=SMALL, reserve_bytes=4096, retention=Retention(segments=2))
    log.append(Kind.INTENT, {})
    before, written, refused = seen(outside), 0, 0
    with subprocess.Popen([sys.executable, "-c", SWAPPING, folder, outside / FOLDER, str(swaps)]) as attacker:
        while attacker.poll() is None:
            try:
                log.append(Kind.OUTCOME, {"n": written})
                written += 1
            except RecordError:
                refused += 1
        assert attacker.returncode == 0
    assert seen(outside) == before
    assert written
    log.append(Kind.OUTCOME, {"n": "alive"})
    log.close()
    found = f"0 in {swaps:,} swaps, {written:,} records written and {refused:,} refused"
    extent.figure("38", "writes outside, folder swapped in a loop", found)
