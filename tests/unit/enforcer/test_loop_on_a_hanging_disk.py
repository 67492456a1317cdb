"""A disk that does not answer holds up neither looking nor judging. A FIFO that nobody reads is such a disk."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enforcer.detection import state_file
from enforcer.detection.types import DetectorState, KillDecision
from enforcer.kill.report import KillResult
from enforcer.loop import EnforcementLoop
from enforcer.quota.checkpoint import Checkpoint
from gpushare.reasons import Reason
from tests.support.wiring import Quotas
from tests.unit.enforcer.made import GPU, POD, quota
from tests.unit.enforcer.test_loop import World, make, wait_for


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("enforcer.runtime.background.WAIT_SECONDS", 0.05)
    monkeypatch.setattr("enforcer.loop.DISK_SECONDS", 0.05)
    yield from make(tmp_path, enforcing=True)


class Hanging:
    """A file that hangs whoever opens it, until it is let go of."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.unlink(missing_ok=True)
        os.mkfifo(file)

    def let_go(self, *, reading: bool = False) -> None:
        """End the hang: from now on there is no such file."""
        opened = os.open(self.file, os.O_PATH)
        self.file.unlink()  # first: it must not take the place of another
        os.close(os.open(f"/proc/self/fd/{opened}", (os.O_WRONLY if reading else os.O_RDONLY) | os.O_NONBLOCK))
        os.close(opened)


def ready(world: World) -> None:
    """The quotas are known before the disk hangs: a busy machine may take longer to read them than a look waits."""
    wait_for(lambda: bool(look(world)["containers"]))
    world.written()


def turns(world: World, count: int) -> None:
    """Look so many times; a hang would hang the test."""
    for _ in range(count):
        world.clock[0] += 0.5
        world.enforcer.poll()


def look(world: World) -> dict[str, Any]:
    """What a look found. Not from the file: a disk that hangs, or is slow, may not have it yet."""
    turns(world, 1)
    return world.metrics.latest.status


def seen(world: World) -> int:
    """How much our container holds, as the last look found."""
    found = world.metrics.latest.status
    return int(next(each["usedMib"] for each in found["containers"] if each["podUid"] == POD))


@pytest.mark.parametrize("name", ["status.json", state_file.NAME])
def test_looking_goes_on_while_a_file_cannot_be_written_and_it_is_reported(name: str, world: World) -> None:
    ready(world)
    disk = Hanging(world.folder / f".{name}.new")
    world.reader.used[GPU] = {101: 9000}
    turns(world, 2)
    assert seen(world) == 9000
    world.reader.used[GPU] = {101: 8000}
    turns(world, 2)
    assert seen(world) == 8000
    wait_for(lambda: "the disk of" in "".join(look(world)["problems"]))
    disk.let_go()
    wait_for(lambda: "the disk of" not in "".join(look(world)["problems"]))
    world.written()
    assert (world.folder / name).stat().st_mtime > time.time() - 60


def test_quotas_that_cannot_be_read_stay_as_they_were(world: World) -> None:
    checkpoint, answers = Checkpoint(world.folder), threading.Event()
    checkpoint.write([quota(grace_seconds=3600)])
    answers.set()
    slow = Quotas(lambda: checkpoint.read() if answers.wait() else ())
    object.__setattr__(world.enforcer._parts, "checkpoint", slow)
    ready(world)
    world.reader.used[GPU] = {101: 9000}
    turns(world, 3)
    world.written()
    answers.clear()
    turns(world, 3)
    assert seen(world) == 9000
    wait_for(lambda: "the disk of" in "".join(look(world)["problems"]))
    answers.set()


def test_nobody_is_ended_before_a_restart_would_know_of_it(world: World) -> None:
    ready(world)
    disk = Hanging(world.folder / f".{state_file.NAME}.new")
    world.reader.used[GPU] = {101: 4500}
    turns(world, 5)
    wait_for(lambda: Reason.AUDIT_UNWRITABLE in {each.reason for each in world.notices})
    assert world.decisions == []
    remembered: list[DetectorState | None] = []

    def end(_: KillDecision) -> KillResult:
        file = world.folder / state_file.NAME
        remembered.append(state_file.decode(file.read_bytes(), world.enforcer._boot, world.clock[0]))
        return KillResult(Reason.KILLED)

    world.execute = end
    disk.let_go()
    world.clock[0] += 60  # its cool-down
    wait_for(lambda: bool(look(world) and remembered))
    assert remembered[0] is not None
    assert len(remembered[0].kills) == 1


def test_who_is_to_be_ended_waits_for_a_slow_disk_and_is_ended_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.loop.DISK_SECONDS", 60)
    ready(world)
    disk = Hanging(world.folder / f".{state_file.NAME}.new")
    world.reader.used[GPU] = {101: 9000}
    turns(world, 4)
    assert world.decisions == []
    disk.let_go()
    wait_for(lambda: len(world.decisions) == 1)


def test_a_breaker_that_the_disk_was_too_slow_to_show_holds_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found after the look that wanted to know, and before anybody is ended."""
    monkeypatch.setattr(world.enforcer._breaker, "sync_from_disk", lambda state: state)
    world.enforcer._breaker.is_open = True
    world.reader.used[GPU] = {101: 9000}
    turns(world, 4)
    wait_for(lambda: bool(look(world)) and 'gpu_share_kill_results_total{reason="BreakerOpen"}' in world.scrape())
    assert world.decisions == []


def test_it_ends_when_it_is_reported_to(world: World) -> None:
    ready(world)
    disk = Hanging(world.folder / f".{state_file.NAME}.new")
    world.reader.used[GPU] = {101: 9000}
    stopped = threading.Event()
    thread = threading.Thread(target=EnforcementLoop.run, args=(world.enforcer, stopped, 0.01), daemon=True)
    thread.start()
    wait_for(lambda: seen(world) == 9000)
    stopped.set()
    thread.join(60)
    assert not thread.is_alive()
    disk.let_go()
