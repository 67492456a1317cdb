"""Daemons as children of ``gpu-share mps``: they outlive the enforcer, and nobody but root starts one."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enforcer.mps import host as mps_host
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import HostPodLauncher, folder_of, read_request
from enforcer.nvml.client import NvmlClient, NvmlTimeouts
from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.types import ComputeMode
from enforcer.nvml.worker_handle import command
from gpushare.errors import MpsError
from tests.integration.processes.mps.conftest import LIMIT, daemons_of, until

pytestmark = pytest.mark.node
PROGRAM = "usr/bin/nvidia-cuda-mps-control"
UUID = "GPU-a1000000-0000-4000-8000-000000000000"
NAME = folder_of(UUID)


@pytest.fixture(name="driver")
def _driver(root: Path, real: Path) -> Path:
    """A driver root that holds the real control program."""
    programs = root / "nvidia" / "usr" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(real, programs)
    libraries = root / "nvidia" / "usr" / "lib"
    libraries.mkdir(parents=True)
    return root / "nvidia"


@pytest.fixture(name="host")
def _host(root: Path, driver: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "enforcer.mps.host", "--run", str(root), "--driver-root", "/"]
    environment = {**os.environ, "PATH": f"{driver / 'usr' / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, env=environment)
    until((root / "mps" / "host.sock").exists, 30)
    yield process
    process.terminate()
    process.wait(15)


def test_whoever_sees_the_socket_can_connect(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, seen = root / "mps" / "host.sock", []

    class Listener(socket.socket):
        def listen(self, *backlog: int) -> None:
            seen.append(where.exists())
            super().listen(*backlog)

    monkeypatch.setattr(socket, "socket", Listener)
    for _ in range(2):
        where.unlink(missing_ok=True)
        mps_host.listen(root).close()
        assert where.is_socket()
    assert seen == [False, False]


def daemon(root: Path, real: Path) -> MpsDaemon:
    return MpsDaemon(UUID, root / "mps" / NAME, real, limit_mib=LIMIT, launcher=HostPodLauncher(root))


def test_the_enforcer_limits_watches_and_ends_a_daemon_that_is_no_child_of_its(
    root: Path, real: Path, host: subprocess.Popen[bytes]
) -> None:
    first = daemon(root, real)
    first.start()
    (pid,) = daemons_of(first.directory)
    assert f"PPid:\t{host.pid}\n" in Path(f"/proc/{pid}/status").read_text()
    assert first.health() == {}
    second = daemon(root, real)  # the enforcer of the next version
    second.start()
    assert daemons_of(first.directory) == [pid]
    second.stop()
    assert daemons_of(first.directory) == []
    second.start()
    assert daemons_of(first.directory) != []


def test_the_host_takes_its_daemons_along_when_it_is_notified_to_stop(
    root: Path, real: Path, host: subprocess.Popen[bytes]
) -> None:
    running = daemon(root, real)
    running.start()
    host.terminate()
    assert host.wait(15) == 0
    assert daemons_of(running.directory) == []
    with pytest.raises(MpsError, match=r"does not answer on .*host\.sock"):
        running.start()


class Modes:
    """One GPU's compute mode."""

    def __init__(self) -> None:
        self.mode: ComputeMode = ComputeMode.DEFAULT

    def compute_mode(self, uuid: str) -> ComputeMode:
        assert uuid == UUID
        return self.mode

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        assert uuid == UUID
        self.mode = mode


def test_when_the_host_ends_the_gpu_is_as_it_was(root: Path, driver: Path) -> None:
    (driver / "usr" / "lib" / "libnvidia-ml.so.1").touch()
    modes = Modes()
    host = mps_host.Host(root, DriverRoot(driver), modes)
    with serving(root, host):
        enforcers = MpsDaemon(
            UUID, root / "mps" / NAME, driver / PROGRAM, limit_mib=LIMIT, modes=modes, launcher=HostPodLauncher(root)
        )
        enforcers.start()
        assert modes.compute_mode(UUID) is ComputeMode.EXCLUSIVE_PROCESS
    host.stop()
    assert modes.compute_mode(UUID) is ComputeMode.DEFAULT
    assert daemons_of(root / "mps" / NAME) == []
    assert not (root / "mps" / NAME / "daemon.json").exists()


def test_a_driver_that_hangs_does_not_keep_the_host_from_ending_its_daemons(root: Path, driver: Path) -> None:
    (driver / "usr" / "lib" / "libnvidia-ml.so.1").touch()
    hangs = root / "hangs" / "usr" / "lib"
    hangs.mkdir(parents=True)
    os.mkfifo(hangs / "libnvidia-ml.so.1")  # whoever loads it waits for ever
    door = NvmlClient(command(root / "hangs"), NvmlTimeouts(deadline=0.5))
    host = mps_host.Host(root, DriverRoot(driver), door)
    with serving(root, host):
        MpsDaemon(
            UUID, root / "mps" / NAME, driver / PROGRAM, limit_mib=LIMIT, modes=Modes(), launcher=HostPodLauncher(root)
        ).start()
    host.stop()
    door.close()
    assert daemons_of(root / "mps" / NAME) == []
    note = json.loads((root / "mps" / NAME / "daemon.json").read_text())
    assert ComputeMode.DEFAULT in note.values(), "the mode to give back is kept for the next attempt"


SLOW = """#!/bin/sh
[ "$1" = -f ] || exit 1
trap 'touch "$CUDA_VISIBLE_DEVICES.asked"; while [ "$(ls *.asked | wc -l)" -lt 4 ]; do sleep 0.05; done; exit' TERM
cd "$(dirname "$0")"
touch "$CUDA_VISIBLE_DEVICES.runs"
while :; do sleep 0.05; done
"""


def test_daemons_that_take_their_time_are_ended_side_by_side(root: Path) -> None:
    """None of the four ends before all were asked to: one after the other each would use up the patience with it."""
    program = root / PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text(SLOW)
    program.chmod(0o755)
    host = mps_host.Host(root, DriverRoot(root))
    gpus = [f"{UUID[:-1]}{number}" for number in range(4)]
    directories = [root / "mps" / folder_of(gpu) for gpu in gpus]
    for gpu, directory in zip(gpus, directories, strict=True):
        (directory / "log").mkdir(parents=True)
        assert "pid" in host.answer(json.dumps({"gpu": gpu, "folder": directory.name}).encode())
    until(lambda: len(list(program.parent.glob("*.runs"))) == 4)
    began = time.monotonic()
    host.stop()
    assert time.monotonic() - began < mps_host.STOP_SECONDS
    assert [each for each in directories if daemons_of(each)] == []


@contextmanager
def serving(root: Path, host: mps_host.Host) -> Iterator[None]:
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            mps_host.serve(listener, host, 0.1)

    with mps_host.listen(root) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(10)


def test_it_says_who_it_is_and_survives_nonsense(root: Path, host: subprocess.Popen[bytes]) -> None:
    assert HostPodLauncher(root).pid() == host.pid
    for line in (b"\n", b"[]\n", b"{\n", b'{"gpu": "x"}\n', b"x" * 5000 + b"\n", b'{"gpu": "' + b"[" * 4000):
        assert "error" in asked(root, line)
    assert HostPodLauncher(root).pid() == host.pid


def asked(root: Path, line: bytes) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(root / "mps" / "host.sock"))
        channel.sendall(line)
        channel.shutdown(socket.SHUT_WR)
        return dict(json.loads(channel.makefile("rb").readline()))


def test_what_it_says_is_json_on_standard_error(root: Path) -> None:
    command = [sys.executable, "-m", "enforcer.mps.host", "--run", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until((root / "mps" / "host.sock").exists)
        asked(root, b"[]\n")
        process.terminate()
        out, err = process.communicate(timeout=15)
    assert out == ""
    assert [json.loads(line)["error"] for line in err.splitlines()] == ["the request is not a JSON object"]


def test_a_driver_without_the_program_is_a_sentence(root: Path) -> None:
    (root / "mps" / NAME / "log").mkdir(parents=True)
    host = mps_host.Host(root, DriverRoot(root))
    answer = host.answer(json.dumps({"gpu": UUID, "folder": NAME}).encode())
    assert "no nvidia-cuda-mps-control below" in str(answer["error"])


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"gpu": "all", "folder": NAME}, "gpu 'all' is not the UUID"),
        ({"gpu": UUID, "folder": "../../etc"}, "folder '../../etc' is not the directory"),
        ({"gpu": UUID, "folder": 0}, "folder 0 is not the directory"),
        ({"gpu": None, "folder": NAME}, "gpu None is not the UUID"),
    ],
)
def test_only_folders_of_gpus_are_served(request_: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        read_request(json.dumps(request_).encode(), tmp_path)


def test_the_socket_is_for_root_alone(root: Path) -> None:
    with mps_host.listen(root):
        assert (root / "mps" / "host.sock").stat().st_mode & 0o777 == 0o600
