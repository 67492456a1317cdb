"""EnvironReader of real processes, and of disks that do not answer."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.attribution.procfs import read_stat
from enforcer.limits.environ_limits import EnvironLimit
from enforcer.limits.process_environ import MAX_BYTES, MAX_STUCK, EnvironReader, from_memory

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


@pytest.fixture(name="sleeper")
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(command, env={LIMIT: "0=512M"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "before it runs its environment may read empty"
        yield process
        process.kill()


def start_of(pid: int) -> int:
    stat = read_stat(Path(f"/proc/{pid}/stat"))
    assert stat is not None
    return stat.start


def test_a_process_is_read_and_not_another_of_its_number(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid)
    assert EnvironReader().limit_of(sleeper.pid, start) == EnvironLimit(512)
    assert EnvironReader().limit_of(sleeper.pid, start + 1) is None


def test_a_process_can_make_its_environment_say_anything() -> None:
    """That is why it can only speak against a limit."""
    program = f"""
import ctypes, time
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_void_p
ctypes.memmove(libc.getenv(b"{LIMIT}"), b"0=4096M", 7)
print("done", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env={LIMIT: "0=9999M"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert EnvironReader().limit_of(process.pid, start_of(process.pid)) == EnvironLimit(4096)
        process.kill()


def test_the_memory_says_what_the_file_says(sleeper: subprocess.Popen[bytes]) -> None:
    folder = Path(f"/proc/{sleeper.pid}")
    assert from_memory(sleeper.pid, (folder / "stat").read_bytes()) == (folder / "environ").read_bytes()


def test_one_that_has_ended_says_nothing(sleeper: subprocess.Popen[bytes]) -> None:
    start = start_of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert EnvironReader().limit_of(sleeper.pid, start) is None


def fake(proc: Path, pid: int, environ: bytes | None) -> None:
    """A process in a procfs of our own; without a text reading its environment waits for ever."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_bytes(b"1 (x) S " + b"0 " * 18 + b"55 0")
    if environ is None:
        os.mkfifo(proc / str(pid) / "environ")
    else:
        (proc / str(pid) / "environ").write_bytes(environ)


def test_a_text_that_is_cut_off_or_empty_says_nothing(tmp_path: Path) -> None:
    fake(tmp_path, 1, b"x=" + b"a" * MAX_BYTES)
    fake(tmp_path, 2, b"")
    fake(tmp_path, 3, b"x=1\0")
    found = [EnvironReader(tmp_path).limit_of(pid, 55) for pid in (1, 2, 3)]
    assert found == [None, None, EnvironLimit()]


def test_one_that_does_not_answer_costs_a_moment_once_and_hides_nobody_else(tmp_path: Path) -> None:
    fake(tmp_path, 1, None)
    fake(tmp_path, 2, f"{LIMIT}=0=512M\0".encode())
    environments = EnvironReader(tmp_path, patience=0.3)
    begun = time.monotonic()
    assert environments.limit_of(1, 55) is None
    assert time.monotonic() - begun >= 0.3
    environments._patience = 60.0
    again = time.monotonic()
    assert environments.limit_of(1, 55) is None
    assert environments.limit_of(2, 55) == EnvironLimit(512)
    assert time.monotonic() - again < 60
    (tmp_path / "1" / "environ").open("wb").close()  # lets the reader go


def test_beyond_so_many_that_do_not_answer_nobody_is_read_until_one_does(tmp_path: Path) -> None:
    honest = MAX_STUCK + 1
    fake(tmp_path, honest, f"{LIMIT}=0=512M\0".encode())
    environments = EnvironReader(tmp_path, patience=0.01)
    for pid in range(1, honest):
        fake(tmp_path, pid, None)
        assert environments.limit_of(pid, 55) is None
    environments._patience = 60.0
    assert environments.limit_of(honest, 55) is None
    (tmp_path / "1" / "environ").open("wb").close()
    deadline = time.monotonic() + 60
    while environments.limit_of(honest, 55) != EnvironLimit(512):
        assert time.monotonic() < deadline
    for pid in range(2, honest):
        (tmp_path / str(pid) / "environ").open("wb").close()
