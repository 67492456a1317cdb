"""Test 18: the union of NVML's lists, through the real nvidia-ml-py: each process once, with all that it holds."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enforcer.nvml.reader import NvmlReader
from gpushare.quantity import MIB
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import KINDS
from tests.safety.seeing import Bed, bed
from tests.safety.test_22_nonsense import Rows, Said
from tests.support import extent

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]


@pytest.fixture(name="made")
def _made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with bed(tmp_path, need_library(), monkeypatch) as found:
        found.sim.register(found.victim, found.gpu, 0, "mps")
        yield found


@pytest.fixture(name="pids")
def _pids() -> Iterator[list[int]]:
    with ExitStack() as stack:
        found = [stack.enter_context(subprocess.Popen(["sleep", "3600"])) for _ in range(5)]
        yield [process.pid for process in found]
        for process in found:
            process.kill()


def clear(made: Bed) -> None:
    for file in (made.sim.folder / "processes").iterdir():
        file.unlink()


def seen(made: Bed) -> dict[int, int]:
    return {each.pid: each.used_mib for each in made.reader.sample(made.gpu).processes}


@pytest.mark.parametrize(
    "kinds", [["mps"], ["graphics"], ["compute"], ["compute", "mps"], ["compute", "graphics", "mps"]]
)
def test_a_process_is_seen_once_whatever_lists_show_it(made: Bed, pids: list[int], kinds: list[str]) -> None:
    clear(made)
    for number, kind in enumerate(kinds, 1):
        made.sim.register(pids[0], made.gpu, 100 * number, kind)
    assert seen(made) == {pids[0]: sum(100 * number for number, _ in enumerate(kinds, 1))}


@pytest.mark.parametrize("shown", range(3))
def test_a_process_that_only_one_list_shows_is_seen(shown: int) -> None:
    """Drivers differ in whether MPS clients stand in the compute list, too: the simulator's do."""
    driver = Said()
    lists: list[Rows] = [[], [], []]
    lists[shown] = [(7, 100 * MIB)]
    driver.lists, driver.used = (lists[0], lists[1], lists[2]), 100 * MIB
    assert [(each.pid, each.used_mib) for each in NvmlReader(driver).sample("GPU-x").processes] == [(7, 100)]


def test_random_machines_are_seen_as_they_are(made: Bed, pids: list[int]) -> None:
    chance, shared = random.Random(18), 0
    count = extent.trials(200, 5000)
    for _ in range(count):
        clear(made)
        truth: dict[int, int] = {}
        for pid in chance.sample(pids, chance.randint(0, len(pids))):
            for kind in chance.sample(sorted(KINDS), chance.randint(1, len(KINDS))):
                mib = chance.randint(0, 1000)
                made.sim.register(pid, made.gpu, mib, kind)
                shared += pid in truth
                truth[pid] = truth.get(pid, 0) + mib
        assert seen(made) == truth
    assert shared > count
    extent.figure("18", "machines whose processes were counted wrongly, doubly or not at all", f"0 in {count:,}")
