"""CUDA programs on a simulated machine: ``tests/gpu/client.py`` and the fake ``libcuda.so.1``, as tests drive them."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

from tests.fakes.gpu import mps_control
from tests.fakes.gpu.state import Sim
from tests.support.patience import holds_within

CLIENT: Final = Path(__file__).parents[2] / "gpu" / "client.py"
PATIENCE: Final = 20.0
Answer = dict[str, Any]


class Program:
    """One process: its first line is ``hello``, then ``ask`` one command after the other."""

    def __init__(self, environment: dict[str, str], *arguments: str, prefix: Sequence[str] = ()) -> None:
        command = [*(prefix or (sys.executable, str(CLIENT))), *arguments]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid, self._rest = self.process.pid, b""

    @property
    def hello(self) -> Answer:
        """Read once, kept."""
        if not hasattr(self, "_hello"):
            self._hello = self.read()
        return self._hello

    def ask(self, command: str) -> Answer:
        """The answer to one command."""
        assert "error" not in self.hello, self.hello
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        return self.read()

    def read(self, patience: float = PATIENCE) -> Answer:
        """The next line. Raises ``TimeoutError``."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            if not select.select([self.process.stdout], [], [], patience)[0]:
                raise TimeoutError(f"pid {self.pid} is silent")
            self._rest += os.read(self.process.stdout.fileno(), 65536) or b'{"ended": true}\n'
        line, _, self._rest = self._rest.partition(b"\n")
        answer: Answer = json.loads(line)
        return answer

    def quit(self) -> int:
        """Let it end by itself; its status."""
        self.process.communicate(b"quit\n", timeout=PATIENCE)
        return self.process.returncode

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.communicate()


class GpuHost:
    """A machine, its MPS daemon if one is started, and the programs that run on it."""

    def __init__(self, folder: Path, library: Path, machine: str) -> None:
        self.folder, self.sim = folder, Sim.create(folder / "sim", machine)
        self.gpus = [gpu.uuid for gpu in self.sim.machine.gpus]
        self.program = mps_control.install(folder, self.sim.folder)
        self.programs: list[Program] = []
        self._library, self._pipes = library, list[Path]()

    def start(
        self, *arguments: str, prefix: Sequence[str] = (), pipe: Path | None = None,
        env: Mapping[str, str] | None = None, **variables: str,
    ) -> Program:  # fmt: skip
        """One more program. Without ``pipe`` it finds no MPS daemon."""
        base = {"PATH": os.environ["PATH"], "CUDA_MPS_PIPE_DIRECTORY": str(pipe or self.folder / "nowhere")}
        environment = base | self.sim.environment(self._library) | dict(env or {}) | variables
        self.programs.append(Program(environment, *arguments, prefix=prefix))
        return self.programs[-1]

    def daemon(self, gpu: int = 0, *more: str) -> Path:
        """Start an MPS daemon for one GPU; its pipe directory."""
        pipe = self.folder / f"pipe{gpu}"
        pipe.mkdir()
        environment = self._environment(pipe) | {"CUDA_VISIBLE_DEVICES": self.gpus[gpu]}
        subprocess.run([self.program, "-d", *more], env=environment, check=True, timeout=PATIENCE)
        self._pipes.append(pipe)
        return pipe

    def control(self, pipe: Path, *commands: str) -> str:
        """What the daemon answers."""
        text = "".join(f"{command}\n" for command in commands)
        return subprocess.run(
            [self.program], env=self._environment(pipe), input=text, text=True, capture_output=True, check=False,
            timeout=PATIENCE,
        ).stdout  # fmt: skip

    def rows(self, pid: int) -> list[tuple[str, int | None]]:
        """Kind and MiB of what a process is seen to hold."""
        return [(row.kind, row.memory_mib) for row in self.sim.processes().get(pid, ())]

    def close(self) -> None:
        """End everything."""
        for program in self.programs:
            program.kill()
        for pipe in self._pipes:
            self.control(pipe, "quit")
            # It has answered and is about to take its files away. The lock is what it holds for life.
            with (pipe / "control_lock").open() as lock:
                assert holds_within(lambda: _free(lock), PATIENCE, pause=0.02), f"the daemon at {pipe} does not end"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _environment(self, pipe: Path) -> dict[str, str]:
        folders = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        return {"PATH": os.environ["PATH"], **folders}


def _free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def host(library: Path, machine: str = "pair-16g") -> Iterator[GpuHost]:
    """A machine in a folder of its own: pytest's paths are too long for sockets, and not for other users."""
    folder = Path(tempfile.mkdtemp(prefix="cuda"))
    folder.chmod(0o755)
    try:
        with GpuHost(folder, library, machine) as made:
            yield made
    finally:
        shutil.rmtree(folder)
