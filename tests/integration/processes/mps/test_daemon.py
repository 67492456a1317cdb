"""The life of a control daemon: started, limited, watched, blocked, killed, taken over, stopped."""

import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from enforcer.mps.control_program import TIMEOUT, Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.manager import MpsManager
from enforcer.nvml.types import ComputeMode
from gpushare.errors import ConfigError, MpsError
from gpushare.reasons import Reason
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Sim
from tests.integration.processes.mps.conftest import Make, daemons_of, until

pytestmark = pytest.mark.node


def _silent(path: str, connected: Any, leave: Any) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(path)
        connected.set()
        leave.wait(60)


def test_a_daemon_is_started_limited_and_stopped(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    assert daemon.control.ask("get_default_device_pinned_mem_limit 0") == "15G\n"
    assert daemon.health() == {}
    assert daemon.pids() == set(daemons_of(daemon.directory))
    daemon.stop()
    assert not daemon.answers()
    assert daemons_of(daemon.directory) == []


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
    # The daemon answers first and writes its log afterwards.
    told = "Cmd:set_default_device_pinned_mem_limit 0 15360M"
    until(lambda: told in (daemon.log / "control.log").read_text())


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
    assert daemons_of(first.directory) == []


def test_what_a_root_tenant_left_in_the_pipe_directory_is_no_hindrance(
    binary: Path, make: Make, tmp_path: Path
) -> None:
    daemon = make(binary)
    daemon.start()
    (pid,) = daemon.pids()
    inode = daemon.pipe.stat().st_ino
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}/exe").exists())
    for each in daemon.pipe.iterdir():
        each.unlink()
    victim = tmp_path / "victim"
    victim.write_text("whole")
    (daemon.pipe / "control_lock").symlink_to(victim)
    (daemon.pipe / "log").symlink_to(tmp_path / "made-by-root")
    (daemon.pipe / "control" / "deep").mkdir(parents=True)
    (daemon.pipe / "control_privileged").write_text("x" * 100_000)
    daemon.pipe.chmod(0o777)
    daemon.start()
    assert daemon.health() == {}
    assert (daemon.pipe.stat().st_ino, daemon.pipe.stat().st_mode & 0o777) == (inode, 0o755)
    assert victim.read_text() == "whole"
    assert not (tmp_path / "made-by-root").exists()


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
    until(lambda: not Path(f"/proc/{pid}/exe").exists())
    with pytest.raises(MpsError) as caught:
        daemon.health()
    assert caught.value.reason is Reason.MPS_UNREACHABLE
    assert (daemon.pipe / "control").exists()
    daemon.start()
    assert daemon.pids() != {pid}
    assert daemon.health() == {}


def test_a_limit_that_a_tenant_changed_is_put_right(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    for tampering in "set_default_device_pinned_mem_limit 0 700M", "set_default_device_pinned_mem_limit 0 0G":
        daemon.control.ask(tampering)
        daemon.health()
        assert daemon.control.ask("get_default_device_pinned_mem_limit 0") == "15G\n"


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
    assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED
    with pytest.raises(MpsError) as caught:
        daemon.terminate(1, Deadline(0.5))
    assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED, "not knowing is not the same as no client"
    assert time.monotonic() - begun < TIMEOUT, "a busy machine's seconds, and not a command's own"
    leave.set()
    holder.join()
    assert daemon.answers()


def test_a_blocked_daemon_can_still_be_stopped(binary: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.mps.watchdog.PATIENCE", 60.0)
    monkeypatch.setattr("enforcer.mps.daemon.STOP_SECONDS", 0.5)
    daemon = make(binary)
    daemon.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(daemon.pipe / "control"))
        daemon.stop()
    assert daemons_of(daemon.directory) == []


def test_one_transaction_runs_at_a_time(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    answers: list[str] = []

    def ask() -> None:
        answers.append(daemon.control.ask("get_default_active_thread_percentage"))

    with (daemon.directory / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MpsError) as caught:
            daemon.control.ask("get_server_list", Deadline(0.1))
        assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["100.0\n"] * 8
    with pytest.raises(ValueError, match="more than one command"):
        daemon.control.ask("get_server_list\nquit")


def test_a_path_too_long_for_sockets_is_refused_before_anything_starts(root: Path, real: Path) -> None:
    with pytest.raises(ConfigError, match="set --run to an absolute path so short"):
        MpsDaemon("GPU-x", root / ("x" * 90), real, limit_mib=1)


def test_a_daemon_that_starts_slowly_gets_longer_each_time(
    stand_in: Path, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.mps.daemon.START_SECONDS", (0.5, 32.0))
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *-f*) sleep 3;; esac\nexec {stand_in} "$@"\n')
    slow.chmod(0o755)
    daemon = make(slow)
    for _ in range(2):
        with pytest.raises(MpsError, match="does not start"):
            daemon.start()
    until(lambda: _starts(daemon), 60)


def _starts(daemon: MpsDaemon) -> bool:
    with suppress(MpsError):
        daemon.start()
        return True
    return False


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/false", "/bin/true"])
def test_a_program_that_is_no_daemon_is_an_error_that_says_so(make: Make, program: str, sim: Sim) -> None:
    reader = SimReader(sim)
    daemon = make(Path(program), modes=reader)
    with pytest.raises(MpsError, match=r"cannot run|does not start"):
        daemon.start()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.DEFAULT
