"""The audit log when its writer is killed, or the power fails, at any moment: what was acknowledged is there."""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import REMOVED, ChainHead, Kind, read, verify
from enforcer.audit.retention import Retention
from gpushare.errors import RecordError
from tests.integration.processes.containers import PROJECT
from tests.support import extent
from tests.support.powercut import Fate, Killed, Recorder, State, build, states

SEGMENT = 3000
RESERVE = 6000
MEMORY = Path("/dev/shm")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose syncs cost nothing."""
    path = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    yield path
    shutil.rmtree(path)


def a_log(folder: Path, keep: int = 0) -> AuditLog:
    return AuditLog(folder, segment_bytes=SEGMENT, reserve_bytes=RESERVE, retention=Retention(segments=keep))


class Run:
    """A writer's life, or several: what it did to its folder, and what it was told is durable."""

    def __init__(self, place: Path, seed: int, before: State = None) -> None:
        self.chance = random.Random(seed)
        self.fate = Fate(chance=self.chance)
        self.keep = self.chance.choice([0, 0, 2])
        self.folder = place / "audit"
        build(self.folder, before)
        self.recorder = Recorder(self.folder, self.fate, before)
        self.heads: list[ChainHead] = []
        """Acknowledged up to the moment whose states are being built."""
        self.count = 0

    def live(self, records: int) -> None:
        with self.recorder.watching():
            for _ in range(records):
                log = a_log(self.folder, self.keep)
                try:
                    self._write(log, records)
                except Killed:
                    continue
                finally:
                    self.fate.killed = 0.0
                    log.close()
                break

    def troubled(self) -> None:
        """Choose what this life has to bear."""
        self.fate.sync, self.fate.cut, self.fate.killed = self.chance.choice(
            [(0, 0, 0), (0, 0, 0.03), (0.06, 0, 0), (0.06, 0.3, 0), (0.15, 0.6, 0.06)]
        )

    def _write(self, log: AuditLog, records: int) -> None:
        while self.count < records:
            self.count += 1
            if self.chance.random() < 0.12:
                self.fate.full = not self.fate.full
            kind = self.chance.choice([Kind.INTENT, Kind.OUTCOME])
            note = "x" * self.chance.choice([0, 30, 200, 900, 1020])
            try:
                head = log.append(kind, {"pid": self.count, "note": note, "more": [note[:400]] * (self.count % 4)})
            except RecordError:
                continue
            # From here on the enforcer sends signals.
            self.recorder.note_later(lambda head=head: self.heads.append(head))  # type: ignore[misc] # bound now


def the_log_after(state: State, place: Path) -> tuple[list[bytes], int]:
    """Start an enforcer on what a power cut left; returns its log, and how many torn lines it found."""
    folder = place / "after" / "audit"
    folder.parent.mkdir()
    build(folder, state)
    before = _recovered(folder) if state is not None else 0
    with a_log(folder) as log:
        log.append(Kind.OUTCOME, {"note": "after the power cut"})
        assert log.shortage is None
    lines = list(chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder)))
    found = _recovered(folder) - before
    shutil.rmtree(folder.parent)
    return lines, found


def _recovered(folder: Path) -> int:
    return sum(path.read_bytes().count(b'"kind":"RECOVERED"') for path in segments(folder))


def check(run: Run, state: State, place: Path) -> None:
    """Nothing acknowledged is lost, at most one line is torn, the chain holds."""
    lines, torn = the_log_after(state, place)
    verdict = verify(lines)
    assert verdict.ok, (verdict, state)
    records = [read(line) for line in lines]
    there = {(record["seq"], record["hash"]) for record in records}
    pruned = max((record[REMOVED]["last"] for record in records if record["kind"] == "PRUNED"), default=0)
    lost = [head for head in run.heads if head.seq > pruned and (head.seq, head.hash) not in there]
    assert lost == [], state
    assert torn <= 1 + run.recorder.failed, state
    assert records[-1]["note"] == "after the power cut"


def test_no_power_cut_loses_an_acknowledged_record(place: Path) -> None:
    lives, most, checked, cuts, again = extent.trials(10, 150), extent.trials(3, 5), 0, 0, 0
    for seed in range(lives):
        run = Run(place, seed)
        run.troubled()
        run.live(12)
        shutil.rmtree(run.folder, ignore_errors=True)
        cuts += len(run.recorder.ops)
        for number, (_, state) in enumerate(states(run.recorder, run.chance, most)):
            check(run, state, place)
            checked += 1
            if number % 50 == seed % 50:
                again += cut_while_mending(run, state, place)
    assert checked > cuts > 25 * lives
    assert again > lives
    total = f"0 in {checked + again:,} states, {again:,} of them during recovery, after {cuts:,} calls"
    extent.figure("34", "acknowledged records lost in power cuts", total)


def cut_while_mending(run: Run, state: State, place: Path) -> int:
    """The power fails once more while an enforcer takes up what it left; returns the number of states."""
    second = Run(place, run.count, state)
    second.keep, second.heads = run.keep, list(run.heads)
    second.live(2)
    shutil.rmtree(second.folder, ignore_errors=True)
    count = 0
    for _, left in states(second.recorder, second.chance, 3):
        check(second, left, place)
        count += 1
    return count


@pytest.mark.parametrize("where", ["in memory", "on a disk"])
def test_no_kill_of_the_writer_loses_an_acknowledged_record(where: str, place: Path, tmp_path: Path) -> None:
    on_disk = where == "on a disk"
    trials = extent.trials(5, 500) if on_disk else extent.trials(55, 9_500)
    folder = str((tmp_path if on_disk else place) / "audit")
    command = [sys.executable, "-m", "tests.support.killed_writer", folder, str(trials), "7", "random"]
    found = json.loads(subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout)
    assert found["broken"] == []
    assert found["lost"] == 0
    assert found["killed"] == trials
    assert found["acknowledged"] > trials
    assert found["torn"] <= trials
    assert found["segments"] > trials / 20
    lost = f"{found['lost']} of {found['acknowledged']:,} in {found['killed']:,} kills"
    extent.figure("34", f"acknowledged records lost when the writer is killed, {where}", lost)
