"""Starting an MPS control daemon: as a child of ours, or as a child of the host process in its own pod.

A pod's processes end with the pod, and a daemon's end is felt by every tenant of its GPU. So on a cluster daemons are
children of ``gpu-share mps``, whose DaemonSet is replaced only on purpose; the enforcer asks it through a Unix socket
that root alone can open. Both see the machine's own pids, so everything but the start goes on as with a child of ours.

A request is one line of JSON, ``{"gpu": UUID, "folder": name}``; the answer is one too, ``{"pid": number}`` or
``{"error": sentence}``.
"""

import hashlib
import json
import resource
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.attribution.procfs import PidHandle
from gpushare.contract import CUDA_VISIBLE_DEVICES, MPS_LOG_DIRECTORY, MPS_PIPE_DIRECTORY
from gpushare.errors import MpsError
from gpushare.patterns import Pattern
from gpushare.reasons import Reason

FOLDER: Final = "mps"
PIPE: Final = "pipe"
SOCKET: Final = "host.sock"
FOLDER_DIGITS: Final = 12
LIMIT: Final = 4096
PODS: Final = "kubectl describe pods -A -l app.kubernetes.io/name=gpu-share-mps"
SECONDS: Final = 5.0
MULTIUSER: Final = "-multiuser-server"
"""Without it one user's clients wait until all of another's have gone; 535.309.01 ends silently on it without a GPU."""
SOON: Final = 1.0
POLL: Final = 0.01
FILES: Final = 65536
"""NVIDIA asks for 16,384 at least."""
_GPU: Final = Pattern(r"(GPU|MIG)-[0-9a-fA-F-]{8,64}", 68)
_NAME: Final = Pattern(rf"[0-9a-f]{{{FOLDER_DIGITS}}}", FOLDER_DIGITS)


log = structlog.get_logger()


def folder_of(gpu: str) -> str:
    """Name the directory of a GPU's daemon: the card's own for ever, and short, for paths of sockets are."""
    return hashlib.sha256(gpu.encode()).hexdigest()[:FOLDER_DIGITS]


def pipe_of(run: Path, gpu: str) -> str:
    """Name the pipe directory of a GPU's daemon, whether it runs or not."""
    return str(run / FOLDER / folder_of(gpu) / PIPE)


def shared_memory_of(run: Path) -> Path:
    """Name what daemons and their clients have as ``/dev/shm``, where they have it together."""
    return run / "shm"


def variables(gpu: str, directory: Path) -> dict[str, str]:
    """What a daemon has to find in its environment."""
    return {
        CUDA_VISIBLE_DEVICES: gpu,
        MPS_PIPE_DIRECTORY: str(directory / PIPE),
        MPS_LOG_DIRECTORY: str(directory / "log"),
    }


class ChildLauncher:
    """Daemons as children of this process, in sessions of their own."""

    def launch(
        self, gpu: str, directory: Path, binary: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start the daemon of a GPU, for clients of all users where its program can. Raises ``MpsError``."""
        allow_files()
        full = {**environment, **variables(gpu, directory)}
        child = _start(binary, [MULTIUSER], directory, full)
        if not _ended_at_once(child, directory / "pipe" / "control"):
            return child
        log.warning(
            "MPS serves one user's processes at a time: its program does not support -multiuser-server",
            reason=str(Reason.MPS_STARTED), gpu=gpu,
        )  # fmt: skip
        return _start(binary, [], directory, full)


def allow_files() -> None:
    """Let this process and its children open as many files as servers with many clients need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _start(
    binary: Path, more: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with (directory / "log" / "control.log").open("ab") as output:
        try:
            return subprocess.Popen(  # noqa: S603 - our own program
                [binary, "-f", *more], env=environment, start_new_session=True, cwd="/",
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        except OSError as error:
            raise MpsError(f"the enforcer cannot run {binary}: {error}") from error


def _ended_at_once(child: subprocess.Popen[bytes], control: Path) -> bool:
    """Wait until it listens or ends; whether it ended. One that takes its time is on its way."""
    end = time.monotonic() + SOON
    while child.poll() is None and not control.exists() and time.monotonic() < end:
        time.sleep(POLL)
    return child.poll() is not None


class RemoteProcess:
    """A daemon that is somebody else's child."""

    def __init__(self, pid: int) -> None:
        self.pid: Final = pid

    def poll(self) -> object | None:
        """Say that it has ended; ``None`` while it runs."""
        return True if self._ended(0) else None

    def wait(self, timeout: float) -> object:
        """Wait for its end. Raises ``subprocess.TimeoutExpired``."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout)
        return True

    def _ended(self, seconds: float) -> bool:
        handle = PidHandle.open(self.pid)
        if handle is None:
            return True
        with handle:
            return handle.ended(seconds)


LaunchedProcess = subprocess.Popen[bytes] | RemoteProcess
"""A daemon that was started."""


class HostPodLauncher:
    """Daemons as children of ``gpu-share mps``.

    Args:
        run: directory that both pods share.
    """

    def __init__(self, run: Path) -> None:
        self._socket = run / FOLDER / SOCKET

    def launch(self, gpu: str, directory: Path, binary: Path, environment: Mapping[str, str]) -> RemoteProcess:
        """Ask for the daemon of a GPU; program and environment are the host's own. Raises ``MpsError``."""
        del binary, environment
        answer = self._ask({"gpu": gpu, "folder": directory.name})
        if not isinstance(answer.get("pid"), int):
            raise MpsError(f"the MPS pod did not start the daemon of {gpu}: {answer.get('error')}")
        return RemoteProcess(answer["pid"])

    def pid(self) -> int | None:
        """The host process itself, whose pod the daemons and their servers are in; ``None`` while there is none."""
        try:
            return int(self._ask({})["host"])
        except (MpsError, KeyError, TypeError, ValueError):
            return None

    def _ask(self, request: Mapping[str, str]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as channel:
                channel.settimeout(SECONDS)
                channel.connect(str(self._socket))
                channel.sendall(json.dumps(request).encode() + b"\n")
                answer = json.loads(channel.makefile("rb").readline(LIMIT))
        except (OSError, ValueError) as error:
            raise MpsError(f"the MPS pod of this node does not answer on {self._socket} ({error}); {PODS}") from error
        if not isinstance(answer, dict):
            raise MpsError(f"the MPS pod of this node sent an unexpected answer: {answer!r:.80}")
        return answer


def read_request(line: bytes, run: Path) -> tuple[str, Path] | None:
    """Read a request: the GPU and its directory; ``None`` where it only asks who is there.

    Raises:
        ValueError: it is none.
    """
    request = json.loads(line)
    if not isinstance(request, dict):
        raise ValueError("the request is not a JSON object")  # noqa: TRY004 - one error for all that is wrong with it
    if not request:
        return None
    gpu, folder = request.get("gpu"), request.get("folder")
    if not (isinstance(gpu, str) and _GPU.fullmatch(gpu)):
        raise ValueError(f"gpu {gpu!r:.80} is not the UUID of a GPU")
    if not (isinstance(folder, str) and _NAME.fullmatch(folder)):
        raise ValueError(f"folder {folder!r:.80} is not the directory of an MPS daemon")
    return gpu, run / FOLDER / folder
