"""Test 22: what NVML says is nonsense, or true for one sample only. Nobody is killed on fewer than three that agree."""

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import pynvml  # noqa: TID251 - its error classes are what the reader catches
import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.detector import evaluate
from enforcer.detection.types import Decision, DetectorConfig, DetectorState
from enforcer.nvml.reader import NvmlReader
from enforcer.quota.types import Quota
from gpushare.errors import NvmlError
from gpushare.quantity import MIB
from gpushare.reasons import Reason
from tests.support import extent
from tests.support.wiring import Attribution
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD, neighbour, quota

pytestmark = pytest.mark.timeout(900)
TOTAL: Final = 16384
QUOTA: Final = 4096
OURS, OTHERS = 101, 201
Rows = list[tuple[int, int | None]]
UNDER: Final[Rows] = [(OURS, 4000 * MIB), (OTHERS, 4096 * MIB)]
OVER: Final[Rows] = [(OURS, 4097 * MIB), (OTHERS, 4096 * MIB)]
ALL_ONES: Final = 2**64 - 1


class Said:
    """A driver that says what it is told to, in nvidia-ml-py's words."""

    def __init__(self) -> None:
        self.lists: tuple[Rows, Rows, Rows] = ([], [], [])
        self.total, self.used = TOTAL * MIB, 0

    def __getattr__(self, name: str) -> Any:
        plain: Mapping[str, Any] = {
            "nvmlSystemGetDriverVersion": "570", "nvmlSystemGetCudaDriverVersion_v2": 12080, "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetUUID": GPU, "nvmlDeviceGetName": "A100", "nvmlDeviceGetMinorNumber": 0,
            "nvmlDeviceGetCudaComputeCapability": (8, 0), "nvmlDeviceGetPciInfo": SimpleNamespace(busId="0"),
            "nvmlDeviceGetMigMode": (0, 0), "nvmlInitWithFlags": None, "nvmlShutdown": None,
            "nvmlDeviceGetHandleByIndex": GPU, "nvmlDeviceGetHandleByUUID": GPU,
            "nvmlDeviceGetNumGpuCores": 6912,
        }  # fmt: skip
        return lambda *_, **__: plain[name]

    def _rows(self, number: int) -> list[Any]:
        # nvidia-ml-py itself turns the number that is all ones into None.
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if mib == ALL_ONES else mib) for pid, mib in self.lists[number]
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, _: Any) -> list[Any]:  # noqa: N802 - NVML's names
        return self._rows(0)

    def nvmlDeviceGetGraphicsRunningProcesses(self, _: Any) -> list[Any]:  # noqa: N802
        return self._rows(1)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, _: Any) -> list[Any]:  # noqa: N802
        return self._rows(2)

    def nvmlDeviceGetMemoryInfo(self, _: Any, version: int | None = None) -> Any:  # noqa: N802
        if version is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=self.total, used=self.used, reserved=512 * MIB)


def says(driver: Said, rows: Rows, *, total: int = TOTAL * MIB, used: int | None = None) -> None:
    """Let all three lists be what a real driver's are for these rows."""
    driver.lists = (rows, [], rows)
    held = sum(mib or 0 for mib in dict(rows).values())
    driver.total, driver.used = total, held + 300 * MIB if used is None else used


HUGE: Final[Rows] = [(OURS, 9000 * MIB), (OTHERS, 4096 * MIB)]
NONSENSE: Final[Mapping[str, Callable[[Said], None]]] = {
    "no amount": lambda driver: says(driver, [(OURS, None), (OTHERS, 5)]),
    "all ones": lambda driver: says(driver, [(OURS, ALL_ONES)], used=8000 * MIB),
    "nearly all ones": lambda driver: says(driver, [(OURS, ALL_ONES - 1)], used=8000 * MIB),
    "more than the card": lambda driver: says(driver, [(OURS, (TOTAL + 1) * MIB)], used=TOTAL * MIB),
    "the card for each": lambda driver: says(driver, [(OURS, TOTAL * MIB), (OTHERS, TOTAL * MIB)], used=TOTAL * MIB),
    "more than is used": lambda driver: says(driver, HUGE, used=8000 * MIB),
    "more used than there is": lambda driver: says(driver, HUGE, used=(TOTAL + 1) * MIB),
    "all ones used": lambda driver: says(driver, HUGE, used=ALL_ONES),
    "no card": lambda driver: says(driver, HUGE, total=0),
    "an endless card": lambda driver: says(driver, HUGE, total=ALL_ONES),
    "half the card": lambda driver: says(driver, [(OURS, 4097 * MIB)], total=TOTAL // 2 * MIB),
    "no process": lambda driver: says(driver, [(0, 9000 * MIB), *UNDER]),
    "a process beyond all pids": lambda driver: says(driver, [(2**22 + 1, 9 * MIB), *OVER]),
    "two amounts for one": lambda driver: twice(driver, (OURS, 9000 * MIB)),
}
"""None of these may count as a sample, whatever it would say of the container."""
PASSING: Final = tuple(kind for kind in NONSENSE if kind != "half the card")
"""A card that says its new size again when it is counted again has it: its second look is a sample."""


def twice(driver: Said, row: tuple[int, int]) -> None:
    says(driver, HUGE)
    driver.lists = ([*UNDER, row], [], [])


def owner(pid: int) -> Identity | None:
    return Identity(pid=pid, start=1, owner=ContainerRef(POD, CONTAINER if pid == OURS else NEIGHBOUR))


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_no_sample_but_blindness(kind: str) -> None:
    driver = Said()
    says(driver, UNDER)
    reader = NvmlReader(driver)
    reader.gpus()
    assert [each.used_mib for each in reader.sample(GPU).processes] == [4000, 4096]
    NONSENSE[kind](driver)
    with pytest.raises(NvmlError) as caught:
        reader.sample(GPU)
    assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE
    says(driver, OVER)
    assert [each.used_mib for each in reader.sample(GPU).processes] == [4097, 4096]


def test_the_same_process_in_every_list_and_twice_in_one_is_one() -> None:
    driver = Said()
    driver.lists, driver.used = ([*UNDER, *UNDER], UNDER, UNDER), 9000 * MIB
    assert [each.used_mib for each in NvmlReader(driver).sample(GPU).processes] == [4000, 4096]


def story(chance: random.Random) -> list[str]:
    """What NVML says, look after look: spikes alone among the truth, and nonsense in between."""
    calm = chance.random()
    return [chance.choice(PASSING) if chance.random() < 0.4 else "over" if chance.random() < calm else "under"
            for _ in range(12)]  # fmt: skip


def told(driver: Said, word: str) -> None:
    if word in NONSENSE:
        NONSENSE[word](driver)
    else:
        says(driver, OVER if word == "over" else UNDER)


def kills(words: list[str], quotas: tuple[Quota, ...]) -> list[tuple[int, str]]:
    """The looks after which somebody would be killed, and who."""
    driver, found, state = Said(), list[tuple[int, str]](), DetectorState()
    says(driver, UNDER)
    watch = UsageSampler(NvmlReader(driver), Attribution(owner))
    watch.sample()
    for number, word in enumerate(words):
        told(driver, word)
        readings = {view.gpu.uuid: view.reading for view in watch.sample()}
        state, said = evaluate(state, quotas, readings, number * 0.5, DetectorConfig())
        found += [(number, each.quota.container) for each in said if each.decision is Decision.KILL]
    return found


def test_nobody_is_killed_on_fewer_than_three_samples_that_agree() -> None:
    chance = random.Random(22)
    quotas = (quota(grace_seconds=0.0), neighbour(container="other", grace_seconds=0.0))
    killed, nonsense, stories = 0, 0, extent.trials(300, 10_000)
    for _ in range(stories):
        words = story(chance)
        nonsense += sum(word in NONSENSE for word in words)
        ended = kills(words, quotas)
        killed += len(ended)
        for number, who in ended:
            agreed = [word for word in words[: number + 1] if word not in NONSENSE][-3:]
            assert (who, agreed) == ("model", ["over"] * 3), (words, ended)
        if not ended:
            plain = "".join("o" if word == "over" else "u" for word in words if word not in NONSENSE)
            assert "ooo" not in plain, words
    assert killed > stories / 20
    extent.figure(
        "22",
        "kills on fewer than three samples that agree",
        f"0 in {stories:,} stories with {nonsense:,} nonsensical samples",
    )
