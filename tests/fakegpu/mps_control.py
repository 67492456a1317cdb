"""Stands in for ``nvidia-cuda-mps-control``, with a server: the real one cannot start a server without a GPU.

Same command line, same words on standard input and output; clients are the processes that hold simulated memory of
kind ``mps`` on the daemon's GPU. A test holds it to the real program's answers. What goes wrong is scripted with
``Sim.fail_mps``. Only the standard library is imported here: a transaction starts a process.
"""

import os
import socket
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
END = b"\0"
MAX_PIPE = 86
MULTIUSER = "-multiuser-server"


def install(folder: Path, state: Path) -> Path:
    """Put an executable into ``folder`` that takes ``nvidia-cuda-mps-control``'s place on the machine in ``state``."""
    program = folder / "nvidia-cuda-mps-control"
    # -S: no site packages, which would cost each transaction a tenth of a second.
    script = f'#!/bin/sh\nGPU_SHARE_SIM={state} exec {sys.executable} -S {Path(__file__)} "$@"\n'
    program.write_text(script)
    program.chmod(0o755)
    return program


def main(arguments: list[str]) -> int:
    """Be the daemon (``-d``, ``-f``, perhaps for several users), or pass standard input to it."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    arguments, several = [each for each in arguments if each != MULTIUSER], MULTIUSER in arguments
    if len(pipe) > MAX_PIPE or any(each not in {"-d", "-f"} for each in arguments):
        return 1
    if several and (not arguments or not multiuser_supported()):
        return 1
    if arguments:
        os.chdir(ROOT)
        daemon = [sys.executable, "-m", "tests.fakegpu.mps_daemon", arguments[0], pipe]
        os.execv(sys.executable, [*daemon, MULTIUSER] if several else daemon)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(f"{pipe}/control")
        except OSError:
            print("Cannot find MPS control daemon process", file=sys.stderr)
            return 1
        return talk(connection)


def multiuser_supported() -> bool:
    """Whether the machine's ``world`` has a driver that serves several users; read plainly, see above."""
    world = Path(os.environ.get("GPU_SHARE_SIM", ""), "world")
    return not world.is_file() or "multiuser_supported=0" not in world.read_text().split()


def talk(connection: socket.socket) -> int:
    """Send each line, print each answer."""
    for line in sys.stdin:
        connection.send(line.rstrip("\n").encode() + END)
        answer = connection.recv(65536)
        if not answer:
            return 0 if line.startswith("quit") else 1
        sys.stdout.write(answer.rstrip(END).decode())
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
