"""A simulated machine with two GPUs, and daemons on it that are ended whatever happens."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from enforcer.mps.daemon import MpsDaemon
from gpushare.errors import MpsError, NvmlError
from tests.fakes.gpu import mps_control
from tests.fakes.gpu.mps_binary import need_mps_control
from tests.fakes.gpu.state import Sim

ROOT = Path(__file__).parents[4]
LIMIT = 15360
Make = Callable[..., MpsDaemon]


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
        command = [
            sys.executable,
            "-m",
            "tests.fakes.gpu.tenant",
            "--gpu",
            uuids[gpu],
            "--mib",
            str(mib),
            "--kind",
            kind,
        ]
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


def daemons_of(directory: Path) -> list[int]:
    """Processes that have a pipe directory in their environment, children of the daemon included."""
    wanted = f"CUDA_MPS_PIPE_DIRECTORY={directory}/pipe\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def until(what: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
