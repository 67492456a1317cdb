"""MPS control daemons, run for real: NVIDIA's own program, and the stand-in where clients are needed."""

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from enforcer.model import ComputeMode
from enforcer.mps import MpsDaemon, MpsManager
from enforcer.mps_control import Deadline
from enforcer.mps_protocol import ServerStatus
from gpushare.errors import ConfigError, MpsError, NvmlError
from gpushare.reasons import Reason
from tests.fakegpu import mps_control
from tests.fakegpu.mps_binary import debian_sources, need_mps_control
from tests.fakegpu.reader import SimReader
from tests.fakegpu.state import Fault, MpsFault, Sim

pytestmark = pytest.mark.node
ROOT = Path(__file__).parents[2]
LIMIT = 14848


@pytest.fixture(name="root")
def _root() -> Iterator[Path]:
    # Not pytest's own folder: its paths are too long for sockets.
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(name="sim")
def _sim(root: Path) -> Sim:
    return Sim.create(root / "sim", "pair-16g")


@pytest.fixture(name="uuids")
def _uuids(sim: Sim) -> list[str]:
    return [gpu.uuid for gpu in sim.machine.gpus]


@pytest.fixture(name="real", scope="session")
def _real() -> Path:
    return need_mps_control()


@pytest.fixture(name="stand_in")
def _stand_in(root: Path, sim: Sim) -> Path:
    return mps_control.install(root, sim.folder)


@pytest.fixture(name="binary", params=["real", "stand_in"])
def _binary(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


Make = Callable[..., MpsDaemon]


@pytest.fixture(name="make")
def _make(root: Path, uuids: list[str]) -> Iterator[Make]:
    made: list[MpsDaemon] = []

    def make(binary: Path, name: str = "0", **more: Any) -> MpsDaemon:
        made.append(MpsDaemon(uuids[int(name)], root / name, binary, limit_mib=LIMIT, **more))
        return made[-1]

    yield make
    for daemon in made:
        with suppress(MpsError, NvmlError):
            daemon.stop()


@pytest.fixture(name="tenant")
def _tenant(sim: Sim, uuids: list[str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*more: str, gpu: int = 0, mib: int = 1000, kind: str = "mps") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.fakegpu.tenant", "--gpu", uuids[gpu], "--mib", str(mib), "--kind", kind]
        environment = os.environ | sim.environment()
        process = subprocess.Popen([*command, *more], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _silent(path: str, connected: Any, leave: Any) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        connected.set()
        leave.wait(60)


def _daemons_of(directory: Path) -> list[int]:
    """Processes that have a pipe directory in their environment, children of the daemon included."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={directory}/pipe\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def _until(what: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_daemon_is_started_limited_and_stopped(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    assert daemon.control.ask("get_default_device_pinned_mem_limit 0") == "14G\n"
    health = daemon.health()
    assert (health.servers, health.limit_mib, health.exclusive) == ({}, LIMIT, None)
    assert daemon.pids() == set(_daemons_of(daemon.directory))
    daemon.stop()
    assert not daemon.answers()
    assert _daemons_of(daemon.directory) == []


def test_two_gpus_have_two_daemons_that_do_not_meet(binary: Path, make: Make) -> None:
    first, second = make(binary, "0"), make(binary, "1")
    manager = MpsManager({"a": first, "b": second})
    assert manager.start() == {}
    first.control.ask("set_default_active_thread_percentage 10")
    assert second.control.ask("get_default_active_thread_percentage") == "100.0\n"
    assert len(manager.pids()) == 2
    manager.stop()
    assert manager.pids() == frozenset()


def test_the_daemon_sees_one_gpu_and_its_own_directories(binary: Path, make: Make, uuids: list[str]) -> None:
    daemon = make(binary)
    daemon.start()
    (pid,) = daemon.pids()
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert {
        f"CUDA_VISIBLE_DEVICES={uuids[0]}",
        f"CUDA_MPS_PIPE_DIRECTORY={daemon.directory}/pipe",
        f"CUDA_MPS_LOG_DIRECTORY={daemon.directory}/log",
    } <= set(environment)
    assert os.getsid(pid) == pid, "it has a session of its own and outlives us"
    assert "Cmd:set_default_device_pinned_mem_limit 0 14848M" in (daemon.log / "control.log").read_text()


def test_a_restarted_enforcer_takes_the_daemon_over_and_can_still_end_it(binary: Path, make: Make) -> None:
    first = make(binary)
    first.start()
    pids = first.pids()
    again = make(binary)
    again.start()
    assert again.pids() == pids
    again.stop()
    assert first._child is not None
    first._child.wait(5)
    assert _daemons_of(first.directory) == []


def test_a_second_daemon_in_a_directory_is_refused(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    for form in "-f", "-d":
        second = subprocess.run([binary, form], env=daemon._environment, capture_output=True, text=True, check=False)
        assert (second.returncode, "already running" in second.stderr + second.stdout) == (1, True)
    assert daemon.answers()


def test_a_daemon_killed_outright_is_started_again_over_its_stale_sockets(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    (pid,) = daemon.pids()
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not daemon.answers())
    with pytest.raises(MpsError) as caught:
        daemon.health()
    assert caught.value.reason is Reason.MPS_UNREACHABLE
    assert (daemon.pipe / "control").exists()
    daemon.start()
    assert daemon.pids() != {pid}
    assert daemon.health().limit_mib == LIMIT


def test_a_limit_that_a_tenant_changed_is_put_right(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    for tampering in "set_default_device_pinned_mem_limit 0 700M", "set_default_device_pinned_mem_limit 0 0G":
        daemon.control.ask(tampering)
        daemon.health()
        assert daemon.control.ask("get_default_device_pinned_mem_limit 0") == "14G\n"


def test_a_silent_client_of_the_socket_costs_no_more_than_the_deadline(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    context = multiprocessing.get_context("spawn")
    connected, leave = context.Event(), context.Event()
    holder = context.Process(target=_silent, args=(str(daemon.pipe / "control"), connected, leave))
    holder.start()
    assert connected.wait(20)
    begun = time.monotonic()
    with pytest.raises(MpsError) as caught:
        daemon.control.ask("get_server_list", Deadline(0.5))
    assert caught.value.reason is Reason.CONTROL_BLOCKED
    assert daemon.terminate(1, Deadline(0.5)) is False, "not knowing is not the same as no client"
    assert time.monotonic() - begun < 2
    leave.set()
    holder.join()
    assert daemon.answers()


def test_a_blocked_daemon_can_still_be_stopped(binary: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.mps.STOP_SECONDS", 0.5)
    daemon = make(binary)
    daemon.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(daemon.pipe / "control"))
        daemon.stop()
    assert _daemons_of(daemon.directory) == []


def test_one_transaction_runs_at_a_time(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    answers: list[str] = []

    def ask() -> None:
        answers.append(daemon.control.ask("get_default_active_thread_percentage"))

    with (daemon.directory / "lock").open("a") as file:
        import fcntl  # noqa: PLC0415

        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MpsError) as caught:
            daemon.control.ask("get_server_list", Deadline(0.1))
        assert caught.value.reason is Reason.CONTROL_BLOCKED
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["100.0\n"] * 8
    with pytest.raises(ValueError, match="more than one command"):
        daemon.control.ask("get_server_list\nquit")


def test_a_path_too_long_for_sockets_is_refused_before_anything_starts(root: Path, real: Path) -> None:
    with pytest.raises(ConfigError, match="choose a shorter state directory"):
        MpsDaemon("GPU-x", root / ("x" * 90), real, limit_mib=1)


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false", "/bin/true"])
def test_a_program_that_is_no_daemon_is_an_error_that_says_so(make: Make, program: str, sim: Sim) -> None:
    reader = SimReader(sim)
    daemon = make(Path(program), modes=reader)
    with pytest.raises(MpsError, match=r"cannot be run|does not start"):
        daemon.start()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.DEFAULT


def test_the_card_is_exclusive_while_the_daemon_runs(stand_in: Path, make: Make, sim: Sim) -> None:
    reader = SimReader(sim)
    daemon = make(stand_in, modes=reader)
    daemon.start()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.EXCLUSIVE_PROCESS
    sim.set_compute_mode(daemon.gpu, 0)
    assert daemon.health().exclusive
    assert reader.compute_mode(daemon.gpu) is ComputeMode.EXCLUSIVE_PROCESS
    again = make(stand_in, modes=reader)
    again.start()
    again.stop()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.DEFAULT


def test_a_mode_that_cannot_be_set_keeps_mps_from_starting(stand_in: Path, make: Make, sim: Sim) -> None:
    sim.fail(Fault(call="nvmlDeviceSetComputeMode", error=4))
    daemon = make(stand_in, modes=SimReader(sim))
    with pytest.raises(NvmlError, match="Permission"):
        daemon.start()
    assert _daemons_of(daemon.directory) == []
    assert MpsManager({daemon.gpu: daemon}).start()[daemon.gpu].reason is Reason.NVML_UNAVAILABLE


def test_the_server_is_started_early_and_watched(stand_in: Path, make: Make, sim: Sim) -> None:
    daemon = make(stand_in, server_uid=0)
    daemon.start()
    (server,) = daemon.servers()
    assert daemon.health().servers == {server: ServerStatus.ACTIVE}
    assert server in daemon.pids()
    sim.fail_mps(MpsFault(command="get_server_status", answer="FAULT\n"))
    assert daemon.health().servers == {server: ServerStatus.FAULT}
    sim.fail_mps(MpsFault(command="get_server_status", answer='Unknown command "get_server_status"\n'))
    assert daemon.health().servers == {server: None}


def test_without_a_gpu_the_real_server_fails_and_the_daemon_serves_all_the_same(real: Path, make: Make) -> None:
    daemon = make(real, server_uid=0)
    daemon.start()
    _until(lambda: daemon.health().servers == {})


def test_a_client_is_terminated_and_its_neighbour_is_not(stand_in: Path, make: Make, sim: Sim, tenant: Any) -> None:
    daemon = make(stand_in)
    daemon.start()
    first, second, plain = tenant(), tenant(), tenant(kind="compute")
    assert daemon.terminate(first.pid) is True
    assert sorted(sim.processes()) == sorted([second.pid, plain.pid])
    assert first.poll() is None, "MPS ends contexts, not processes"
    assert first.stdout.readline().startswith("CUDA error: MPS client terminated")
    assert daemon.terminate(first.pid) is None
    assert daemon.terminate(plain.pid) is None
    assert daemon.terminate(os.getpid()) is None


def test_only_the_daemon_of_its_gpu_knows_a_client(stand_in: Path, make: Make, uuids: list[str], tenant: Any) -> None:
    daemons = {uuid: make(stand_in, str(index)) for index, uuid in enumerate(uuids)}
    manager = MpsManager(daemons)
    assert manager.start() == {}
    there = tenant(gpu=1)
    assert daemons[uuids[0]].terminate(there.pid) is None
    assert manager.terminate(there.pid, uuids[0]) is None
    assert manager.terminate(there.pid) is True
    assert manager.terminate(there.pid, "GPU-unknown") is None
    assert set(manager.health()) == set(uuids)


@pytest.mark.parametrize(
    "fault",
    [
        MpsFault(command="terminate_client", answer="Server 1 not found\nServer 1 not found!\n1\n"),
        MpsFault(command="terminate_client", answer="700\n"),
        MpsFault(command="terminate_client", answer=""),
        MpsFault(command="terminate_client", hang_ms=3000),
        MpsFault(command="get_server_list", answer="what?\n"),
        MpsFault(command="get_client_list", answer="Server 1 not found\n"),
    ],
    ids=["server gone", "CUDA error", "nothing", "hangs", "garbage", "list gone"],
)
def test_a_client_that_may_still_be_there_counts_as_not_terminated(
    stand_in: Path, make: Make, sim: Sim, tenant: Any, fault: MpsFault
) -> None:
    daemon = make(stand_in)
    daemon.start()
    process = tenant()
    sim.fail_mps(fault)
    begun = time.monotonic()
    assert daemon.terminate(process.pid, Deadline(1.0)) is False
    assert time.monotonic() - begun < 2
    sim.fail_mps()


def test_a_daemon_that_is_gone_terminates_nobody(stand_in: Path, make: Make) -> None:
    daemon = make(stand_in)
    daemon.start()
    daemon.stop()
    assert daemon.terminate(os.getpid()) is False


PERCENTAGE, LIMIT_0, PRIORITY = (
    "default_active_thread_percentage",
    "default_device_pinned_mem_limit",
    "default_client_priority",
)
SAME = [
    *("get_server_list", "ps", "bogus", "", "help me", f"get_{PERCENTAGE}"),
    *(
        f"set_{PERCENTAGE} 33.3",
        f"get_{PERCENTAGE}",
        f"set_{PERCENTAGE} 150",
        f"set_{PERCENTAGE} 0",
        f"set_{PERCENTAGE}",
    ),
    *(
        f"{verb}_{LIMIT_0} 0{value}"
        for mib in (512, 1023, 1536, 143771)
        for verb, value in (("set", f" {mib}M"), ("get", ""))
    ),
    *(f"set_{LIMIT_0} 0 10G", f"get_{LIMIT_0} 0", f"get_{LIMIT_0} 7", f"set_{LIMIT_0} 0 0G", f"get_{LIMIT_0} 0"),
    *(f"set_{LIMIT_0} 0 5M", f"set_{LIMIT_0} 0", f"get_{LIMIT_0} 0"),
    *(f"get_{PRIORITY}", f"set_{PRIORITY} 1", f"get_{PRIORITY}", f"set_{PRIORITY} 2"),
    *("get_client_list 1", "get_client_list", "terminate_client 1 2", "terminate_client x y", "terminate_client"),
    *("shutdown_server 5", "shutdown_server 5 -f", "get_device_client_list", "get_device_client_list 5"),
    *("get_device_pinned_mem_limit 4 0", "get_active_thread_percentage 4"),
]


def test_the_stand_in_answers_as_the_real_one_does(real: Path, stand_in: Path, make: Make) -> None:
    first, second = make(real, "0"), make(stand_in, "1")
    for daemon in first, second:
        daemon.start()
    told = [(command, first.control.ask(command), second.control.ask(command)) for command in SAME]
    assert [row for row in told if row[1] != row[2]] == []
    for daemon in first, second:
        daemon.stop()
        with pytest.raises(MpsError, match="Cannot find MPS control daemon process"):
            daemon.control.ask("get_server_list")


def test_debian_archives_are_found_in_either_format_and_others_left_alone() -> None:
    text = """deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib
# deb http://old.example/debian sid main
deb https://packages.example/apt x main
deb-src http://mirror.example/debian bookworm main

Types: deb
URIs: http://deb.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/a.gpg

Types: deb
URIs: https://deb.example/node_20.x
Components: main
"""
    assert list(debian_sources(text)) == [
        ("http://mirror.example/debian", "bookworm", "/k.gpg"),
        ("http://deb.example/debian", "bookworm bookworm-updates", "/usr/share/keyrings/a.gpg"),
    ]
