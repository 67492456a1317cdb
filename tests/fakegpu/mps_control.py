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
MAX_PIPE = 87
MULTIUSER = "-multiuser-server"
PROTOCOL = ("-p", "3")
SEVERAL = "-m"
GREETING, VERSION, WORDS, BETWEEN = "\x02protocol", "3", "\x03", "\x1f"
"""How program and daemon of protocol 3 find each other here; one of protocol 2 knows nothing of it."""


def install(folder: Path, state: Path) -> Path:
    """Put an executable into ``folder`` that takes ``nvidia-cuda-mps-control``'s place on the machine in ``state``."""
    program = folder / "nvidia-cuda-mps-control"
    # -S: no site packages, which would cost each transaction a tenth of a second.
    script = f'#!/bin/sh\nGPU_SHARE_SIM={state} exec {sys.executable} -S {Path(__file__)} "$@"\n'
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
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
    os.execv(sys.executable, [sys.executable, "-m", f"tests.fakegpu.{module}", arguments[0], pipe, *arguments[1:]])


def supported(switch: str, *, otherwise: bool) -> bool:
    """Whether the machine's ``world`` has a driver that can do something; read plainly, see above."""
    world = Path(os.environ.get("GPU_SHARE_SIM", ""), "world")
    said = dict(line.split("=") for line in world.read_text().split()) if world.is_file() else {}
    return said.get(switch, str(int(otherwise))) != "0"


def exchange(connection: socket.socket, line: str) -> str:
    """Send a line, return the answer."""
    connection.send(line.encode() + END)
    return connection.recv(65536).rstrip(END).decode()


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
