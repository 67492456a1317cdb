"""The simulator's own promises: cards fill up, tenants hold, grow, fork, ignore what they are told to ignore."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu.state import MACHINES, Fault, Machine, OutOfGpuMemoryError, Sim, started

pytestmark = pytest.mark.node
ROOT = Path(__file__).parents[3]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(name="sim")
def _sim(tmp_path: Path) -> Sim:
    return Sim.create(tmp_path, "single-16g")


@pytest.fixture(name="uuid")
def _uuid(sim: Sim) -> str:
    return sim.machine.gpus[0].uuid


@pytest.fixture(name="start")
def _start(sim: Sim) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "tests.fakes.gpu.tenant", *more]
        running.append(subprocess.Popen(command, env=os.environ | sim.environment(), cwd=ROOT, **pipes))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def _until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_tenant_grows_when_it_is_time(sim: Sim, uuid: str, start: Start) -> None:
    process = start("--mib", "1000", "--grow-to", "3000", "--after", "3")
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready pid={process.pid} mib=1000\n"
    assert sim.used(uuid) == 1000
    assert process.stdout.readline() == f"grown pid={process.pid} mib=3000\n"
    assert [h.memory_mib for h in sim.processes()[process.pid]] == [3000]


def _row(sim: Sim, pid: int) -> int | None:
    rows = sim.processes().get(pid)
    return sum(row.memory_mib or 0 for row in rows) if rows else None


def _ready(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    return process.pid


def test_a_tenant_without_a_row_holds_a_descriptor_until_it_ends(sim: Sim, uuid: str, start: Start) -> None:
    process = start("--mib", "0", "--hidden", "12288")
    links = [link.readlink() for link in Path(f"/proc/{_ready(process)}/fd").iterdir()]
    assert [link.parent for link in links].count(sim.folder / "nvidiactl") == 1
    assert (sim.used(uuid), sim.exported(uuid), sim.processes()) == (12288, 12288, {})
    late = start("--mib", "0", "--hidden", "4000")
    assert "out of memory" in late.communicate(timeout=20)[1]
    process.kill()
    process.wait()
    assert sim.used(uuid) == 0


def test_managed_memory_of_a_tenant_stands_in_no_row(sim: Sim, uuid: str, start: Start) -> None:
    pid = _ready(start("--mib", "500", "--managed", "5120"))
    assert (sim.used(uuid), _row(sim, pid)) == (5620, 500)


def test_a_row_comes_late_and_the_total_at_once(sim: Sim, uuid: str, start: Start) -> None:
    process = start("--mib", "500", "--late", "1.5", "--grow-to", "2000", "--after", "3")
    pid = _ready(process)
    assert (sim.used(uuid), _row(sim, pid)) == (500, None)
    _until(lambda: _row(sim, pid) == 500)
    assert process.stdout is not None
    assert process.stdout.readline() == f"grown pid={pid} mib=2000\n"
    assert (sim.used(uuid), _row(sim, pid)) == (2000, 500)
    _until(lambda: _row(sim, pid) == 2000)
    assert sim.used(uuid) == 2000


def test_a_full_card_refuses(sim: Sim, uuid: str, start: Start) -> None:
    sim.allocate(os.getpid(), uuid, 15000)
    process = start("--mib", "873")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "out of memory" in said
    assert "has 872 MiB left" in said


def test_children_hold_as_much_and_go_with_their_parent(sim: Sim, uuid: str, start: Start) -> None:
    process = start("--mib", "100", "--fork", "3")
    _until(lambda: sim.used(uuid) == 400)
    process.kill()
    _until(lambda: sim.used(uuid) == 0)


def test_a_tenant_may_ignore_being_asked_to_go(sim: Sim, uuid: str, start: Start) -> None:
    process = start("--mib", "100", "--ignore-term")
    _until(lambda: sim.used(uuid) == 100)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    process.kill()
    _until(lambda: sim.used(uuid) == 0)


def test_allocations_never_exceed_the_card_however_many_race(sim: Sim, uuid: str) -> None:
    refused = []

    def take() -> None:
        for _ in range(10):
            try:
                sim.allocate(os.getpid(), uuid, 500)
            except OutOfGpuMemoryError:
                refused.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sim.used(uuid) == 500 * (40 - len(refused)) == 15500


def test_what_is_freed_is_free(sim: Sim, uuid: str) -> None:
    sim.register(os.getpid(), uuid, 500, "mps")
    sim.register(os.getpid(), uuid, 300, "graphics")
    assert sim.used(uuid) == 800
    assert sim.free(os.getpid(), uuid)
    assert not sim.free(os.getpid())
    assert sim.processes() == {}


@pytest.mark.parametrize("name", sorted(file.stem for file in MACHINES.glob("*.machine")))
def test_machine_files_read_back_as_they_are_written(name: str) -> None:
    text = (MACHINES / f"{name}.machine").read_text()
    assert Machine.parse(text).text() == text


def test_mistakes_are_named(sim: Sim, uuid: str) -> None:
    with pytest.raises(ValueError, match="no machine 'nope'; there are "):
        Machine.named("nope")
    with pytest.raises(ValueError, match=uuid):
        sim.gpu("GPU-nope")
    with pytest.raises(ValueError, match="not one of compute"):
        sim.register(1, uuid, 5, "copy")
    with pytest.raises(ValueError, match="machine line"):
        Machine.parse("driver=1\nnvml=1\ncuda=1\ngpu\tuuid=x\n")


def test_faults_read_back_as_they_are_written(sim: Sim) -> None:
    faults = (
        Fault(call="*", error=15, after=2, times=1),
        Fault(pid=7, memory_mib="none"),
        Fault(gpu="GPU-1", used_mib=4),
    )
    sim.fail(*faults)
    assert sim.faults() == faults
    sim.fail()
    assert sim.faults() == ()


def test_who_lives_is_notified_by_the_kernel() -> None:
    assert started(os.getpid()) is not None
    assert started(2**22 + 1) is None
