"""One look at many GPUs of a slow driver: one deadline for all of them, and each has its turn."""

import time
from collections.abc import Callable, Iterator

import pytest

from enforcer.attribution.usage import UsageSampler
from enforcer.nvml import wire
from enforcer.nvml.client import NvmlClient, NvmlTimeouts
from enforcer.nvml.types import GpuSample
from enforcer.nvml.worker_handle import WorkerProcess
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.unit.enforcer.test_loop import Attributor, card

WAITS = NvmlTimeouts(deadline=2.0, patience=10.0)
GPUS = tuple(card(f"GPU-{number}", number) for number in range(8))


class Driver(WorkerProcess):
    """A process whose driver takes its time over every sample, by a clock of its own."""

    def __init__(self, takes: float) -> None:
        self.takes, self.now, self.left = takes, 0.0, 0.0
        self.answer = b""
        self.asked: list[str] = []

    def send(self, line: bytes) -> None:
        number, what, arguments = wire.decode_request(line)
        assert self.answer == b"", "one question at a time"
        if what == "gpus":
            self.left, self.answer = 0.0, wire.encode_result(number, GPUS)
            return
        self.asked.append(arguments[0])
        sample = GpuSample(uuid=arguments[0], total_mib=16384, used_mib=0, processes=())
        self.left, self.answer = self.takes, wire.encode_result(number, sample)

    def receive(self, end: float) -> bytes | None:
        waited = min(self.left, max(0.0, end - self.now))
        self.now, self.left = self.now + waited, self.left - waited
        if self.left:
            return None
        line, self.answer = self.answer, b""
        return line or None

    def kill(self, seconds: float) -> bool:
        return True


@pytest.fixture(name="slow")
def _slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], tuple[Driver, NvmlClient]]]:
    def make(takes: float) -> tuple[Driver, NvmlClient]:
        driver = Driver(takes)
        monkeypatch.setattr("enforcer.nvml.client.time.monotonic", lambda: driver.now)
        monkeypatch.setattr("enforcer.nvml.client.WorkerProcess", lambda _: driver)
        return driver, NvmlClient([], WAITS)

    before = time.monotonic
    yield make
    monkeypatch.setattr("enforcer.nvml.client.time.monotonic", before)


def test_what_is_not_answered_by_the_deadline_of_a_look_is_not_waited_for(slow: object) -> None:
    driver, reader = slow(0.9)  # type: ignore[operator]
    with reader.batch():
        for gpu in GPUS[:2]:
            assert reader.sample(gpu.uuid).uuid == gpu.uuid
        for gpu in GPUS[2:]:
            with pytest.raises(NvmlError) as caught:
                reader.sample(gpu.uuid)
            assert caught.value.reason is Reason.NVML_HUNG
    assert driver.now == WAITS.deadline, "one for all"
    assert driver.asked == ["GPU-0", "GPU-1", "GPU-2"], "the others are not asked for nothing"
    for gpu in GPUS:
        assert reader.sample(gpu.uuid).uuid == gpu.uuid, "alone each has the whole of it"


@pytest.mark.parametrize("takes", [0.3, 0.9, 1.5, 1.9])
def test_every_gpu_of_a_slow_driver_has_its_turn(takes: float, slow: object) -> None:
    driver, reader = slow(takes)  # type: ignore[operator]
    watch, seen = UsageSampler(reader, Attributor()), list[str]()
    for _ in range(2 * len(GPUS)):
        before = driver.now
        views = watch.sample()
        assert [view.gpu for view in views] == list(GPUS)
        assert driver.now - before <= 2 * WAITS.deadline, "to count them, and to read them"
        seen += [view.gpu.uuid for view in views if view.sample is not None]
    counts = [seen.count(gpu.uuid) for gpu in GPUS]
    assert 2 <= max(counts) <= 2 * min(counts)
