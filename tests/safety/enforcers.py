"""``python -m tests.safety.enforcers FOLDER CARD [options]``: enforcers by the dozen, each a process of its own.

Reads one word a line from standard input, forks an enforcer for each and answers with its pid: what they import is
imported once. They are the product's own, but for NVML: ``CARD`` is a JSON file of MiB by pid, and each look at it is a
line in ``FOLDER/looks``, with the pid of who looked. All end with this process.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enforcer.main import main as enforce
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import card

LOOKS: Final = "looks"
PR_SET_PDEATHSIG: Final = 1
CARD_MIB: Final = 1 << 30


class Scripted(GpuReader):
    """NVML, read from a file; whoever looks leaves a mark."""

    def __init__(self, file: Path, looks: int) -> None:
        self._file, self._looks = file, looks

    def gpus(self) -> tuple[Gpu, ...]:
        return (card(GPU, 0),)

    def sample(self, uuid: str) -> GpuSample:
        os.write(self._looks, f"{os.getpid()}\n".encode())
        held = {int(pid): mib for pid, mib in json.loads(self._file.read_text()).items()}
        rows = tuple(GpuProcess(pid, mib) for pid, mib in held.items())
        return GpuSample(uuid=uuid, total_mib=CARD_MIB, used_mib=sum(held.values()), processes=rows)


def run(folder: Path, file: Path, options: Sequence[str]) -> int:
    """Be one enforcer."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(2, 1)  # the pids go there
    looks = os.open(folder / LOOKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return enforce(options, reader=Scripted(file, looks))


def main(argv: Sequence[str]) -> None:
    """Fork when told to."""
    folder, file, *options = argv
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    for _ in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            os._exit(run(Path(folder), Path(file), options))
        print(pid, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
