"""A driver that hangs, on a clock that jumps: when NVML is heard again, and how many processes that takes."""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import pytest

from enforcer.nvml import wire
from enforcer.nvml.client import NvmlClient
from enforcer.nvml.types import GpuSample
from enforcer.nvml.worker_handle import WorkerProcess
from gpushare.errors import NvmlError
from tests.support import extent

POLL: Final = 0.5
SLOWEST: Final = 1.5 * POLL
NEVER: Final = float("inf")


class Calls(Enum):
    """What becomes of a call that the driver hangs on."""

    LOST = auto()
    """It never comes back; the process can be killed."""
    WAKE = auto()
    """It comes back when the driver answers again; the process can be killed meanwhile."""
    HELD = auto()
    """It comes back then, and the kernel keeps the process until then."""


@dataclass
class Driver:
    """``hangs``: from when to when; processes take ``start`` seconds to initialise, ``answer`` for a question."""

    calls: Calls
    hangs: tuple[float, float] = (0.0, 0.0)
    start: float = 0.1
    answer: float = 0.001
    now: float = 0.0
    made: list["Worker"] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def running(self) -> int:
        return sum(not each.exited for each in self.made)


class Worker(WorkerProcess):
    """A process that asks that driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._ready = driver, driver.now + driver.start
        self._line, self._at, self._killed = b"", NEVER, False
        self._pid = 1000 + len(driver.made)
        driver.made.append(self)

    @property
    def pid(self) -> int:
        return self._pid

    def send(self, line: bytes) -> None:
        number, _, (uuid,) = wire.decode_request(line)
        sample = GpuSample(uuid=uuid, total_mib=100, used_mib=0, processes=(), clients=())
        self._line = wire.encode_result(number, sample)
        begun, (first, last) = max(self._ready, self._driver.now), self._driver.hangs
        hung = first <= begun < last
        self._at = begun + self._driver.answer if not hung else NEVER if self._driver.calls is Calls.LOST else last

    def receive(self, end: float) -> bytes | None:
        self._driver.now = max(self._driver.now, min(end, self._at))
        if self._at > self._driver.now:
            return None
        line, self._line, self._at = self._line, b"", NEVER
        return line.rstrip(b"\n")

    def kill(self, seconds: float) -> bool:
        self._killed = True
        self._driver.now += 0.0 if self.exited else seconds
        return self.exited

    @property
    def exited(self) -> bool:
        stuck = self._driver.calls is Calls.HELD and self._driver.now < self._at < NEVER
        return self._killed and not stuck


@dataclass
class Enforcer:
    """Looks at so many GPUs at its intervals, and asks something else in between."""

    driver: Driver
    client: NvmlClient
    gpus: int
    chance: random.Random

    def look(self) -> bool:
        """Return whether all GPUs were read, and wait for the next time."""
        read = 0
        with self.client.batch():
            for number in range(self.gpus):
                with suppress(NvmlError):
                    self.client.sample(f"GPU-{number}")
                    read += 1
        pause = self.chance.uniform(0.5 * POLL, SLOWEST)
        self.driver.now += pause / 2
        with suppress(NvmlError):
            self.client.sample("GPU-other")
        self.driver.now += pause / 2
        return read == self.gpus

    def until(self, when: float) -> None:
        while self.driver.now < when:
            self.look()

    def heard(self) -> float:
        """Return when a look begins that reads all GPUs."""
        while True:
            begun = self.driver.now
            if self.look():
                return begun
            assert begun < 1e5


@pytest.fixture(name="driver")
def _driver(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Iterator[Driver]:
    made = Driver(calls)

    def start(_command: Sequence[str]) -> Worker:
        return Worker(made)

    monkeypatch.setattr("enforcer.nvml.client.WorkerProcess", start)
    monkeypatch.setattr("enforcer.nvml.client.time", made)
    yield made
    assert made.running() <= 3, "the one asked, the silent one, one that cannot be killed"


def enforcer(driver: Driver, gpus: int, seed: int = 0) -> Enforcer:
    return Enforcer(driver, NvmlClient(["worker"]), gpus, random.Random(seed))


@pytest.mark.parametrize("calls", Calls)
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("lasts", [3, 40, 400])
def test_a_driver_that_answers_again_is_heard_within_two_polls(driver: Driver, gpus: int, lasts: int) -> None:
    for seed in range(extent.trials(3, 20)):
        here = enforcer(driver, gpus, seed)
        here.until(driver.now + 5)
        end = driver.now + lasts + here.chance.random()
        driver.hangs = driver.now, end
        here.until(end)
        assert here.heard() - end <= 2 * SLOWEST
        here.client.close()


@pytest.mark.parametrize("calls", [Calls.WAKE])
def test_while_a_driver_hangs_no_look_waits_for_it(driver: Driver) -> None:
    here = enforcer(driver, gpus=8)
    here.until(5)
    driver.hangs = driver.now, NEVER
    here.until(driver.now + 3)
    for _ in range(100):
        begun = driver.now
        here.look()
        assert driver.now - begun <= SLOWEST + 0.5


@pytest.mark.parametrize("calls", [Calls.HELD])
def test_processes_that_the_kernel_keeps_are_few_and_named(driver: Driver) -> None:
    here = enforcer(driver, gpus=1)
    here.until(5)
    driver.hangs = driver.now, driver.now + 50
    here.until(driver.now + 40)
    assert driver.running() == 2, "the silent one, and one that was tried beside it"
    assert str(driver.made[1].pid) in str(here.client.problem)
    here.until(driver.now + 20)
    assert not here.client.problem
    assert driver.running() == 1


@pytest.mark.parametrize("calls", [Calls.WAKE])
@pytest.mark.parametrize("start", [3.0, 25.0, 55.0])
def test_nvml_that_takes_long_to_initialise_is_waited_for(driver: Driver, start: float) -> None:
    """As without persistence mode, with many GPUs."""
    driver.start = start
    here = enforcer(driver, gpus=1)
    assert start <= here.heard() <= start + SLOWEST
    assert here.client._kept is driver.made[0]


@pytest.mark.parametrize("calls", [Calls.LOST])
def test_a_call_that_is_lost_ends_its_process_after_a_minute(driver: Driver) -> None:
    here = enforcer(driver, gpus=1)
    here.until(5)
    driver.hangs = driver.now, NEVER
    here.until(driver.now + 55)
    assert not driver.made[0].exited
    here.until(driver.now + 15)
    assert driver.made[0].exited
    here.client.stop()
    assert driver.running() == 0


@pytest.mark.parametrize("calls", [Calls.LOST])
def test_one_that_answers_slowly_after_a_hang_is_asked_again(driver: Driver) -> None:
    here = enforcer(driver, gpus=3)
    here.until(5)
    driver.hangs = driver.now, driver.now + 10
    driver.answer = 0.3
    here.until(driver.hangs[1])
    assert here.heard() - driver.hangs[1] <= 2 * SLOWEST
    assert driver.running() == 1
