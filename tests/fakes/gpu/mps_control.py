"""Stands in for ``nvidia-cuda-mps-control``, with a server: the real one cannot start a server without a GPU.

Same command line, same words on standard input and output; clients are the processes that hold simulated memory of
kind ``mps`` on the daemon's GPU. A test holds it to the real program's answers. What goes wrong is scripted with
``Sim.fail_mps``. Next to nothing is imported here, ``_socket`` for ``socket`` and no ``pathlib``: each transaction
starts this program, and they cost two thirds of its time.
"""

import os
import sys
from _socket import AF_UNIX, SOCK_SEQPACKET, socket

TYPE_CHECKING = False
if TYPE_CHECKING:  # as typing has it, which takes longer to import than all the rest
    from pathlib import Path

HERE = os.path.realpath(__file__)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))
END = b"\0"
MAX_PIPE = 87
MULTIUSER = "-multiuser-server"
WHERE_SUPPORTED = "-multiuser-server-where-supported"
"""What the simulator's program adds: on a node its daemons serve all users, unless the world says otherwise."""


def install(folder: "Path", state: "Path") -> "Path":
    """Put an executable into ``folder`` that takes ``nvidia-cuda-mps-control``'s place on the machine in ``state``."""
    program = folder / "nvidia-cuda-mps-control"
    # -S: no site packages, which would cost each transaction a tenth of a second.
    script = f'#!/bin/sh\nGPU_SHARE_SIM={state} exec {sys.executable} -S {HERE} "$@"\n'
    program.write_text(script)
    program.chmod(0o755)
    return program


def main(arguments: list[str]) -> int:
    """Be the daemon (``-d``, ``-f``, perhaps for several users), or pass standard input to it.

    It ignores other words, as 535 does.
    """
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    several = MULTIUSER in arguments or (WHERE_SUPPORTED in arguments and supported("multiuser_supported"))
    arguments = [each for each in arguments if each not in {MULTIUSER, WHERE_SUPPORTED}]
    command = [] if arguments and arguments[0] in {"-d", "-f"} else arguments
    if len(pipe) > MAX_PIPE or (command and command[0] in {"-p", "-m", "-S", "-M"}):
        return 1
    arguments = arguments[len(command) :]
    if several and (not arguments or not supported("multiuser_supported")):
        return 1
    if arguments:
        _become(pipe, [*arguments, MULTIUSER] if several else arguments)
    connection = socket(AF_UNIX, SOCK_SEQPACKET)
    try:
        connection.connect(f"{pipe}/control")
    except OSError:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    return talk(connection)


def _become(pipe: str, arguments: list[str]) -> None:
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "tests.fakes.gpu.mps_daemon", arguments[0], pipe, *arguments[1:]])


def supported(switch: str) -> bool:
    """Whether the machine's ``world`` has a driver that can do something; read plainly, see above."""
    world = os.path.join(os.environ.get("GPU_SHARE_SIM", ""), "world")
    switches: dict[str, str] = {}
    if os.path.isfile(world):
        with open(world) as file:
            switches = dict(line.split("=") for line in file.read().split())
    return switches.get(switch) != "0"


def talk(connection: socket) -> int:
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
