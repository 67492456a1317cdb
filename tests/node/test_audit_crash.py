"""The kill log when its writer is killed at any moment, and when its disk is full."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from enforcer.audit import KillLog, segments
from enforcer.record import Kind, read, verify
from gpushare.errors import RecordError
from tests.node.containers import PROJECT
from tests.support.need import missing

pytestmark = pytest.mark.node

WRITER = """
import sys, pathlib
from enforcer.audit import KillLog
from enforcer.record import Kind
with KillLog(pathlib.Path(sys.argv[1]), segment_bytes=3000) as log:
    for number in range(100000):
        head = log.append(Kind.INTENT, {"pid": number, "note": "x" * (number % 300)})
        print(head, flush=True)
"""


def lines(folder: Path) -> list[bytes]:
    return list(chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder)))


def test_no_acknowledged_record_is_lost_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    chance = random.Random(11)
    folder = tmp_path / "audit"
    acknowledged: list[str] = []
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, folder], cwd=PROJECT, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout
            acknowledged.append(writer.stdout.readline().strip())
            time.sleep(chance.uniform(0.0, 0.15))
            writer.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in writer.stdout if line.endswith("\n")]
    KillLog(folder).open()
    assert verify(lines(folder)).holds
    there = {f"{record['seq']}:{record['hash']}" for record in map(read, lines(folder))}
    assert [head for head in acknowledged if head not in there] == []
    assert len(segments(folder)) > 3


FULL = """
import resource, signal, sys, pathlib
from enforcer.audit import KillLog
from enforcer.record import Kind
from gpushare.errors import RecordError
log = KillLog(pathlib.Path(sys.argv[1]))
log.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
written = failed = 0
for number in range(60):
    try:
        log.append(Kind.INTENT, {"pid": number, "note": "x" * 100})
        written += 1
    except RecordError as error:
        assert "File too large" in str(error), error
        failed += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]) + number * 50, resource.RLIM_INFINITY))
print(written, failed)
"""


@pytest.mark.parametrize("limit", [1, 500, 777, 1000, 3000])
def test_what_does_not_fit_is_an_error_and_never_half_a_record(tmp_path: Path, limit: int) -> None:
    folder = tmp_path / "audit"
    done = subprocess.run(
        [sys.executable, "-c", FULL, folder, str(limit)], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    written, failed = map(int, done.stdout.split())
    assert failed
    assert written
    assert verify(lines(folder)).holds
    assert len(lines(folder)) == written


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "audit"
    folder.mkdir(mode=0o700)
    options = ["-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], check=False, capture_output=True).returncode != 0:
        missing("no small tmpfs can be mounted here (not root)")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_met_again_and_again_and_service_resumes(tiny: Path) -> None:
    filler, failed = tiny / "filler", 0
    log = KillLog(tiny, segment_bytes=4000)
    log.open()
    chance = random.Random(3)
    for number in range(300):
        if number % 10 == 0:
            filler.write_bytes(b"")
            room = os.statvfs(tiny).f_bavail * os.statvfs(tiny).f_bsize
            filler.write_bytes(b"x" * max(0, room - chance.randint(0, 6000)))
        try:
            log.append(Kind.INTENT, {"pid": number, "note": "y" * chance.randint(0, 900)})
        except RecordError:
            failed += 1
        if sum(path.stat().st_size for path in segments(tiny)) > 30_000:
            break
    filler.unlink()
    log.append(Kind.OUTCOME, {"note": "room again"})
    log.close()
    assert failed > 5
    assert verify(lines(tiny)).holds
    assert read(lines(tiny)[-1])["note"] == "room again"


def test_the_limit_of_this_test_run_is_untouched() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
