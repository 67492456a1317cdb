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
PROTOCOL = ("-p", "3")
SEVERAL = "-m"
GREETING, VERSION, WORDS, BETWEEN = "\x02protocol", "3", "\x03", "\x1f"
"""How program and daemon of protocol 3 find each other here; one of protocol 2 knows nothing of it."""


def install(folder: "Path", state: "Path") -> "Path":
    """Put an executable into ``folder`` that takes ``nvidia-cuda-mps-control``'s place on the machine in ``state``."""
    program = folder / "nvidia-cuda-mps-control"
    # -S: no site packages, which would cost each transaction a tenth of a second.
    script = f'#!/bin/sh\nGPU_SHARE_SIM={state} exec {sys.executable} -S {HERE} "$@"\n'
    program.write_text(script)
    program.chmod(0o755)
    return program


def main(arguments: list[str]) -> int:
    """Be the daemon (``-d``, ``-f``, perhaps for several users, perhaps ``-p 3``), or pass standard input to it.

    Other words are a command of protocol 3; a program that knows none ignores them, as 535 does.
    """
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    arguments, several = [each for each in arguments if each != MULTIUSER], MULTIUSER in arguments
    if tuple(arguments[1:3]) == PROTOCOL:
        if not supported("mps_v3", otherwise=False):
            return 1
        _become(pipe, arguments)
    command = [] if arguments and arguments[0] in {"-d", "-f"} else arguments
    if len(pipe) > MAX_PIPE or (command and command[0] in {"-p", "-m", "-S", "-M"}):
        return 1
    arguments = arguments[len(command) :]
    if several and (not arguments or not supported("multiuser_supported", otherwise=True)):
        return 1
    if arguments:
        _become(pipe, [*arguments, MULTIUSER] if several else arguments)
    connection = socket(AF_UNIX, SOCK_SEQPACKET)
    try:
        connection.connect(f"{pipe}/control")
    except OSError:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    if command and exchange(connection, GREETING) == VERSION:
        answer = exchange(connection, WORDS + BETWEEN.join(command))
        sys.stdout.write(answer[1:])
        return int(answer[:1] or command != ["--quit"])
    return talk(connection)


def _become(pipe: str, arguments: list[str]) -> None:
    os.chdir(ROOT)
    module = "mps_v3" if tuple(arguments[1:3]) == PROTOCOL else "mps_daemon"
    os.execv(sys.executable, [sys.executable, "-m", f"tests.fakes.gpu.{module}", arguments[0], pipe, *arguments[1:]])


def supported(switch: str, *, otherwise: bool) -> bool:
    """Whether the machine's ``world`` has a driver that can do something; read plainly, see above."""
    world = os.path.join(os.environ.get("GPU_SHARE_SIM", ""), "world")
    said: dict[str, str] = {}
    if os.path.isfile(world):
        with open(world) as file:
            said = dict(line.split("=") for line in file.read().split())
    return said.get(switch, str(int(otherwise))) != "0"


def exchange(connection: socket, line: str) -> str:
    """Send a line, return the answer."""
    connection.send(line.encode() + END)
    return connection.recv(65536).rstrip(END).decode()


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
