"""NVIDIA's control program as it is, with none of our code between: what it prints, exits with, leaves in a folder."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from enforcer.mps.control_program import Deadline
from tests.fakes.gpu.mps_binary import need_mps_control
from tests.fakes.gpu.mps_control import install
from tests.fakes.gpu.state import Sim
from tests.integration.processes.mps.conftest import daemons_of, until

KINDS: Final = "real", "stand_in"
BETWEEN: Final = "no_such_command"
"""Said after each line, so that a run with many lines shows where an answer ends."""
END: Final = f'Unknown command "{BETWEEN}"\n'
SETTINGS: Final = "PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH"
_NAMES: Final = re.compile(rb"[a-z_]{2,}(?=\0)")


class GpuHost:
    """A daemon in a folder of its own, and the program that talks to it."""

    def __init__(self, binary: Path, folder: Path, **environment: str) -> None:
        self.binary, self.folder, self.pipe, self.log = binary, folder, folder / "pipe", folder / "log"
        for each in (folder, self.pipe, self.log):
            each.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in SETTINGS if name in os.environ}
        ours = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        self.environment = kept | ours | environment

    def run(
        self, *arguments: str, told: str = "", seconds: float = 30.0, user: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the program; nothing of it stays where it takes longer."""
        return subprocess.run(
            [self.binary, *arguments], env=self.environment, input=told, capture_output=True, text=True,
            timeout=seconds, check=False, user=user,
        )  # fmt: skip

    def start(self, **environment: str) -> None:
        """Start the daemon, with more in its environment than it has otherwise."""
        done = subprocess.run(
            [self.binary, "-d"], env=self.environment | environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        until(lambda: self.run(told="ps\n").returncode == 0)

    def say(self, *lines: str) -> list[str]:
        """The answer to each line, all of them said in one run: it exits 0 whatever was said."""
        done = self.run(told="".join(f"{line}\n{BETWEEN}\n" for line in lines))
        assert (done.returncode, done.stderr) == (0, "")
        answers = done.stdout.split(END)
        assert (len(answers), answers[-1]) == (len(lines) + 1, "")
        return answers[:-1]

    def ask(self, command: str, deadline: Deadline | None = None, moot: object = None) -> str:
        """One line, so that our own client can use this host."""
        return self.say(command)[0]

    def pids(self) -> list[int]:
        """The daemon's process, and its servers'."""
        return daemons_of(self.folder)

    def kill(self) -> None:
        """End the daemon outright, whatever it is doing."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: self.pids() == [])


def names(binary: Path) -> list[str]:
    """Everything in a program that could be a command: each word that ends a string, and what such a word ends in.

    Linkers keep a string that another one ends in only once.
    """
    words = {match[0].decode() for match in _NAMES.finditer(binary.read_bytes())}
    return sorted({word[start:] for word in words for start in range(len(word) - 1)})


@contextmanager
def opened(kind: str, **environment: str) -> Iterator[GpuHost]:
    """A host of the real program or of the stand-in, its daemon started; ended whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    try:
        real = kind == "real"
        binary = need_mps_control() if real else install(folder, Sim.create(folder / "sim", "pair-16g").folder)
        host = GpuHost(binary, folder / "host")
        try:
            host.start(**environment)
            yield host
        finally:
            host.kill()
    finally:
        shutil.rmtree(folder)
