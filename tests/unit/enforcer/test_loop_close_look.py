"""How long a kill takes and how often NVML is read, in virtual time: the loop waits on a clock of the test."""

import random
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enforcer.nvml.types import GpuSample
from tests.unit.enforcer.made import GPU, OTHER_GPU, quota
from tests.unit.enforcer.test_loop import World, make

QUOTA, OVER = 4096, 8000
FREEING = 0.14
"""Seconds for which an H100 with driver 580.159.04 at most counted the memory of a process that had been killed."""
REPLACED = 60


class Waiting(threading.Event):
    """An event whose waits pass at once, on the clock of the test; ``happens`` is when memory is taken."""

    def __init__(self, world: World, until: float, happens: float) -> None:
        super().__init__()
        self._world, self._until, self._happens = world, until, happens

    def wait(self, timeout: float | None = None) -> bool:
        clock = self._world.clock
        clock[0] += timeout or 0.0
        if clock[0] >= self._happens:
            self._world.reader.used[GPU] = {101: OVER}
        self._world.enforcer._workers.submit(lambda: None).result(10)
        if clock[0] >= self._until or self._world.decisions:
            self.set()
        return self.is_set()


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def seconds_to_the_kill(world: World, chance: random.Random) -> float:
    """From a moment between two samples, at which memory is taken, to the decision to kill."""
    happens = world.clock[0] + chance.uniform(3.0, 8.0)
    world.decisions.clear()
    world.reader.used[GPU] = {101: 1000}
    world.enforcer.run(Waiting(world, world.clock[0] + 30.0, happens), 0.5)
    (decision,) = world.decisions
    return decision.at - happens


def test_without_a_grace_period_a_kill_is_decided_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, took = random.Random(7), list[float]()
    monkeypatch.setattr("enforcer.loop.random.uniform", chance.uniform)  # the same intervals in each run of the test
    for number in range(60):
        (folder := tmp_path / str(number)).mkdir()
        with contextmanager(make)(folder, enforcing=True) as world:
            took.append(seconds_to_the_kill(world, chance))
    print(f"\nfrom over to the decision: median {statistics.median(took):.2f} s, worst {max(took):.2f} s")
    assert statistics.median(took) <= 0.45
    assert max(took) <= 0.75 + 0.16 + 0.001


class Replacing(Waiting):
    """A worker ends and its successor begins at each of ``starts``; for ``FREEING`` seconds both are counted."""

    starts: tuple[float, ...] = ()

    def wait(self, timeout: float | None = None) -> bool:
        ended = super().wait(timeout)
        both = any(0 <= self._world.clock[0] - each < FREEING for each in self.starts)
        self._world.reader.used[GPU] = {101: 3000} | ({102: 3000} if both else {})
        return ended


def test_a_process_that_has_ended_is_never_summed_with_its_successor_for_a_kill(world: World) -> None:
    chance, began = random.Random(11), world.clock[0]
    replacing = Replacing(world, began + 20.0 * REPLACED, float("inf"))
    replacing.starts = tuple(began + 20.0 * each + chance.uniform(1.0, 19.0) for each in range(REPLACED))
    world.enforcer.run(replacing, 0.5)
    assert world.decisions == []


@pytest.mark.parametrize("grace", [0.0, 1.0])
def test_a_read_that_took_long_is_not_followed_by_the_next_at_once(world: World, grace: float) -> None:
    """The interval is over by then; a process ends while it is read, and its successor is there already."""
    world.quotas[:] = [quota(grace_seconds=grace)]
    began, chance = world.clock[0], random.Random(13)
    slow = [began + 20.0 * each + chance.uniform(1.0, 10.0) for each in range(REPLACED)]
    ended, sample = [float("inf")], world.reader.sample

    def sampled(uuid: str) -> GpuSample:
        if uuid == GPU and slow and world.clock[0] > slow[0]:
            slow.pop(0)
            world.clock[0] += 1.0
            ended[0] = world.clock[0] - 0.005
        both = uuid == GPU and 0 <= world.clock[0] - ended[0] < FREEING
        world.reader.used[GPU] = {101: 3000} | ({102: 3000} if both else {})
        return sample(uuid)

    world.reader.sample = sampled  # type: ignore[method-assign]
    world.enforcer.run(Waiting(world, began + 20.0 * REPLACED, float("inf")), 0.5)
    assert world.decisions == []


def counting(world: World) -> list[str]:
    """The GPUs that are read from now on, in order."""
    read: list[str] = []
    sample = world.reader.sample

    def counted(uuid: str) -> GpuSample:
        read.append(uuid)
        return sample(uuid)

    world.reader.sample = counted  # type: ignore[method-assign]
    return read


def test_where_nobody_is_over_nvml_is_read_once_an_interval(world: World) -> None:
    read, began = counting(world), world.clock[0]
    world.enforcer.run(Waiting(world, began + 100.0, float("inf")), 0.5)
    assert read.count(GPU) == read.count(OTHER_GPU)
    assert 160 <= read.count(GPU) <= 240, "twice a second"


def test_only_the_gpu_in_question_is_read_more_often_and_only_as_long_as_a_kill_may_come(world: World) -> None:
    world.quotas[:] = [quota(grace_seconds=5.0)]
    read, began = counting(world), world.clock[0]
    world.enforcer.run(Waiting(world, began + 30.0, began + 1.0), 0.5)
    assert len(world.decisions) == 1
    more = read.count(GPU) - read.count(OTHER_GPU)
    assert 0 < more <= 16, "the last interval of the grace period at most: 0.75 s"
