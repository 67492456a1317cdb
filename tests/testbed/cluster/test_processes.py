"""Ending processes: exactly those that were started, whatever became of their number."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.testbed.cluster import processes
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.processes import Process

pytestmark = pytest.mark.node
SLEEP = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)",
]


def start(tmp_path: Path, command: list[str]) -> Process:
    process = processes.spawn("it", command, tmp_path / "it.log", echo=False)
    deadline = time.monotonic() + 10
    while "ready" not in (tmp_path / "it.log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def test_a_process_is_ended_and_reaped(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEP)
    assert processes.alive(process)
    processes.end([process])
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_stubborn_process_is_killed_after_the_patience(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN)
    processes.end([process], patience=0.2)
    assert not processes.alive(process)


def test_a_process_that_got_the_number_of_another_is_left_alone(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEP)
    stranger = replace(process, started=process.started - 1)
    processes.end([stranger])
    processes.kill(stranger)
    assert processes.alive(process)
    processes.kill(process)
    assert not processes.alive(process)


def test_killing_a_server_takes_its_children_along(tmp_path: Path) -> None:
    family = "import os, time; child = os.fork(); child and print(f'child={child} ready', flush=True); time.sleep(60)"
    process = start(tmp_path, [sys.executable, "-c", family])
    child = int((tmp_path / "it.log").read_text().partition("child=")[2].split()[0])
    processes.kill(process)
    deadline = time.monotonic() + 5
    while processes.start_time(child) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes.start_time(child) is None


def test_a_zombie_counts_as_gone(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEP)
    os.kill(process.pid, signal.SIGKILL)
    assert processes.wait_gone(process, 5)


def test_a_server_that_died_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    process = processes.spawn("it", [sys.executable, "-c", "raise SystemExit('no room')"], tmp_path / "it.log")
    assert processes.wait_gone(process, 10)
    with pytest.raises(BedError, match=r"it \(pid \d+\) ended:\n(.*\n)*no room"):
        processes.require_alive([process])
