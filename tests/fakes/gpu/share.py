"""``gpu-share-tenant``: plays a CUDA program inside a container on a simulated node.

    gpu-share-tenant hold 3Gi                          hold 3 GiB until told to stop
    gpu-share-tenant hold 3Gi --for 60s                ... and end well after a minute
    gpu-share-tenant hold 3Gi --then 6Gi --after 5s    ask for more later, as a leak does
    gpu-share-tenant hold 6Gi --over-limit             escape the limit MPS keeps, so that the enforcer has to act
    gpu-share-tenant hide 12Gi                         hold a descriptor alone, and with it memory that is in no row

It prints one JSON line for each change of state. Amounts are all that NVML will show of it, the context included. It
ends with 1 where a CUDA program's allocation or call would have failed, with 2 on wrong use, and with 143 on SIGTERM.
Only the standard library is used, and no file of the simulated machine is touched: see ``tenants.py``.
"""

import argparse
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

TENANTS: Final = "tenants"
DEVICE_FOLDER: Final = "GPU_SHARE_SIM_DEVICE"
"""Where the simulated NVIDIA runtime says it put the GPU, for containers without MPS; or the GPUs, each by its UUID."""
UNITS: Final = {"Mi": 1, "Gi": 1024, "Ti": 1024**2}
SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
CONNECT: Final = 5.0
"""Seconds to find a daemon at the start; later, one that was lost is looked for as long as it takes."""
POLL: Final = 0.1
LAST_WORDS: Final = 1.0
"""Seconds from losing the context to the failing call: a kernel runs, then the program looks."""
NO_DEVICE, MPS_FAILED, RPC_FAILED = 100, 805, 806
Packet = dict[str, Any]


class CudaError(Exception):
    """A CUDA call that fails: its number and what the driver says."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number, self.message = number, message


def amount(text: str) -> int:
    """``3Gi`` as MiB."""
    found = re.fullmatch(r"([0-9]+)(Mi|Gi|Ti)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a amount; write such as 512Mi or 3Gi")
    return int(found[1]) * UNITS[found[2]]


def duration(text: str) -> float:
    """``60s`` as seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; write such as 500ms, 60s or 2m")
    return float(found[1]) * SECONDS[found[2]]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(
        prog="gpu-share-tenant", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = options.add_subparsers(dest="verb", required=True)
    hidden = verbs.add_parser("hide", help="hold GPU memory by a descriptor, without CUDA")
    hidden.add_argument("memory", type=amount, help="such as 12Gi")
    hold = verbs.add_parser("hold", help="hold GPU memory")
    hold.add_argument("memory", type=amount, help="such as 3Gi")
    hold.add_argument("--for", dest="seconds", type=duration, help="end with 0 after this long (default: never)")
    hold.add_argument("--then", type=amount, help="hold this much later")
    hold.add_argument("--after", type=duration, default=5.0, help="how much later (default 5s)")
    hold.add_argument("--device", type=int, default=0, help="of which of the GPUs that are seen (default: the first)")
    hold.add_argument("--over-limit", action="store_true", help="the limit MPS keeps does not bind it")
    hold.add_argument("--ignore-term", action="store_true", help="only SIGKILL ends it")
    hold.add_argument("--child", action="store_true", help="a child process holds the memory, this one waits for it")
    hold.add_argument(
        "--dies-with-server", action="store_true", help="end with 1 when the MPS daemon ends, as CUDA does"
    )
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run until it is killed, told to stop, or its time is up."""
    options = parser().parse_args(argv)
    if options.verb == "hide":
        return hide(options.memory)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else _stop)
    if options.child:
        child = os.fork()
        if child:
            return _wait_for(child, ignore_term=options.ignore_term)
    try:
        return Program(options).run()
    except CudaError as error:
        say("failed", error=error.number, message=error.message)
        sys.stderr.write(f"CUDA error {error.number}: {error.message}\n")
        return 1


def hide(mib: int) -> int:
    """Hold a descriptor until told to stop: its maker has released the memory, and this process has no context."""
    signal.signal(signal.SIGTERM, _stop)
    connection = _connect(Path(_folder(0) or "/"))
    if connection is None:
        return 1
    with connection:
        connection.send(json.dumps({"hide": mib}).encode())
        _, kept, _, _ = socket.recv_fds(connection, 65536, 1)
    say("hiding", hiddenMiB=mib, descriptors=len(kept))
    while True:
        signal.pause()


class Program:
    """One process with a context."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._begun = options, time.monotonic()
        self._wanted: int = options.memory
        self._connection: socket.socket | None = None

    def run(self) -> int:
        """Hold what is wanted until the time is up."""
        self._hold("holding", self._door(CONNECT))
        while (left := self._left()) > 0:
            grown = self._options.then is not None and self._since() >= self._options.after
            if grown and self._wanted != self._options.then:
                self._wanted = self._options.then
                self._hold("grown", self._connection)
            self._listen(min(POLL, left))
        say("done")
        return 0

    def _since(self) -> float:
        return time.monotonic() - self._begun

    def _left(self) -> float:
        return POLL if self._options.seconds is None else float(self._options.seconds) - self._since()

    def _listen(self, seconds: float) -> None:
        """Wait, and hear what is said unasked: nothing, the end of the context, or the end of the daemon."""
        connection = self._connection
        if connection is None:
            self._return(seconds)
        elif select.select([connection], [], [], seconds)[0]:
            packet = _receive(connection)
            if packet is not None:
                say("terminated", error=packet["error"], message=packet["message"])
                time.sleep(LAST_WORDS)
                self._outlive(CudaError(packet["error"], packet["message"]))
            else:
                self._lose()

    def _outlive(self, error: CudaError) -> None:
        """A program that ignores SIGTERM ignores a lost context as well."""
        if not self._options.ignore_term:
            raise error
        while True:
            signal.pause()

    def _lose(self) -> None:
        self._connection = None
        say("server-lost", message="the MPS daemon has ended; its memory stays registered")
        if self._options.dies_with_server:
            raise CudaError(RPC_FAILED, "MPS RPC failure: the server has ended")

    def _return(self, seconds: float) -> None:
        """Look for the daemon that follows."""
        try:
            self._hold("holding-again", self._door(seconds))
        except CudaError as error:
            if error.number != MPS_FAILED:
                raise

    def _hold(self, state: str, connection: socket.socket | None) -> None:
        if connection is None:
            return
        asked = {"hold": self._wanted, "limit": own_limit(), "over": self._options.over_limit}
        reply = _ask(connection, asked)
        while reply is not None and "wait" in reply:
            say("waiting", message="MPS serves another user's processes now")
            time.sleep(1.0)
            reply = _ask(connection, asked)
        if reply is None:
            raise CudaError(MPS_FAILED, "MPS connection failed: the daemon closed it")
        if "error" in reply:
            raise CudaError(reply["error"], reply["message"])
        if name := reply.get("shm"):
            _open_server_file(connection, name)
        self._connection = connection
        say(state, usedMiB=reply["used"], limitMiB=reply["limit"])

    def _door(self, patience: float) -> socket.socket:
        """A connection to whatever gives out GPU memory here."""
        folder = _folder(self._options.device)
        if not folder or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            raise CudaError(
                NO_DEVICE,
                "no CUDA-capable device is detected: CUDA_VISIBLE_DEVICES hides it, or neither CUDA_MPS_PIPE_DIRECTORY "
                f"nor {DEVICE_FOLDER} names a folder of the simulated GPU",
            )
        end = time.monotonic() + patience
        while (connection := _connect(Path(folder))) is None:
            if time.monotonic() >= end:
                raise CudaError(MPS_FAILED, f"nothing of the simulated GPU listens in {folder}")
            time.sleep(min(POLL, patience))
        return connection


def _open_server_file(connection: socket.socket, name: str) -> None:
    """Open the MPS server's file, as each client has to. Raises ``CudaError``; what was given is given back then."""
    file = f"/dev/shm/{name}"
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        connection.close()
        raise CudaError(MPS_FAILED, f"MPS connection failed: {file}: {error.strerror}") from error


def _folder(number: int) -> str | None:
    """Where GPU memory is given out. As CUDA does: a pipe directory that is not there is as good as none."""
    pipe, device = os.environ.get("CUDA_MPS_PIPE_DIRECTORY"), os.environ.get(DEVICE_FOLDER)
    if not device or (pipe and Path(pipe).is_dir()):
        return pipe
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not any((Path(device) / uuid).is_dir() for uuid in seen if uuid):
        return device if number == 0 else None
    return str(Path(device) / seen[number]) if number < len(seen) else None


def own_limit() -> int | None:
    """MiB of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for the one GPU seen; ``None`` where it says nothing."""
    for entry in os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").split(","):
        found = re.fullmatch(r"(?:0|GPU-[^=]*)=([0-9]+)([MG])", entry)
        if found:
            return int(found[1]) * (1024 if found[2] == "G" else 1)
    return None


def say(state: str, **more: object) -> None:
    """One line: the state, and what this process sees of its share."""
    seen = {
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "percentage": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    }
    # Written past Python's buffer: SIGTERM's handler says something too, and may come while a line is being written.
    os.write(1, f"{json.dumps({'state': state, 'pid': os.getpid(), **more, **seen})}\n".encode())


def _stop(*_: object) -> None:
    """SIGTERM's usual end. Without a handler the kernel would not deliver it to a container's first process."""
    say("stopped")
    os._exit(128 + signal.SIGTERM)


def _wait_for(child: int, *, ignore_term: bool) -> int:
    """Live as long as the child; hand SIGTERM on."""
    if not ignore_term:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _connect(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(str(folder / TENANTS))
    except OSError:
        connection.close()
        return None
    return connection


def _ask(connection: socket.socket, packet: Packet) -> Packet | None:
    try:
        connection.send(json.dumps(packet).encode())
    except OSError:
        return None
    return _receive(connection)


def _receive(connection: socket.socket) -> Packet | None:
    """The next packet; ``None`` at the end of the connection."""
    try:
        data = connection.recv(65536)
    except OSError:
        return None
    answer: Packet | None = json.loads(data) if data else None
    return answer


if __name__ == "__main__":
    sys.exit(main())
