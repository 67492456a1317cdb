"""Segments begin while records come as fast as they can, and writers die just then: no gap, one chain."""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from enforcer.audit.log import AuditLog, lines_of, segments
from enforcer.audit.record import ChainHead, Kind, read, verify
from tests.integration.processes.containers import PROJECT
from tests.support import extent

MEMORY = Path("/dev/shm")
OFFERED = 4000
"""Records a second."""
THREADS = 4
THOUSAND = 240_000
"""Bytes of a segment of some thousand records."""


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    yield path
    shutil.rmtree(path)


def offer(log: AuditLog, count: int, heads: list[ChainHead]) -> None:
    """Ask for so many records at this thread's share of the rate, or as fast as they are taken."""
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + number * THREADS / OFFERED - time.monotonic()))
        heads.append(log.append(Kind.WARNED, {"n": number}))


def test_no_gap_while_records_are_offered_faster_than_a_disk_takes_them(place: Path) -> None:
    seconds = extent.trials(1, 20)
    folder, heads = place / "audit", list[ChainHead]()
    with AuditLog(folder, segment_bytes=THOUSAND) as log:
        each = OFFERED * seconds // THREADS
        threads = [threading.Thread(target=offer, args=(log, each, heads)) for _ in range(THREADS)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - begun
    files = segments(folder)
    lines = list(chain.from_iterable(map(lines_of, files)))
    assert verify(lines).ok
    assert [read(line)["seq"] for line in lines] == list(range(1, OFFERED * seconds + 1))
    assert {(head.seq, head.hash) for head in heads} == {(read(line)["seq"], read(line)["hash"]) for line in lines}
    assert len(files) >= 3 * seconds
    assert all(sum(1 for _ in lines_of(file)) > 500 for file in files[:-1])
    offered = (
        f"0 in {len(lines):,} ({OFFERED:,} a second offered, {len(lines) / took:,.0f} taken), {len(files)} segments"
    )
    extent.figure("36", "records missing under load", offered)


def test_no_gap_where_writers_are_killed_while_a_segment_begins(place: Path) -> None:
    trials = extent.trials(10, 1000)
    command = [sys.executable, "-m", "tests.support.killed_writer", str(place / "audit"), str(trials), "36", "rotation"]
    found = json.loads(subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout)
    assert found["broken"] == []
    assert found["lost"] == 0
    assert found["killed"] == trials
    assert found["segments"] > trials / 2
    lost = f"{found['lost']} of {found['acknowledged']:,} in {found['killed']:,} kills, {found['segments']:,} segments"
    extent.figure("36", "acknowledged records lost when writers are killed while a segment begins", lost)
