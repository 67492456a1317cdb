"""``gpu-share mps``: the parent process of a node's MPS control daemons. It starts them when the enforcer asks.

It decides nothing, so that it hardly ever has to be replaced: which GPUs are shared, limits, health and the end of a
daemon are the enforcer's business. When a signal stops it, it ends its daemons, and with them their tenants' contexts.
"""

import argparse
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from enforcer.mps import launcher
from enforcer.mps.daemon import ComputeModes, MpsDaemon
from enforcer.mps.shared_memory import mount_shared_memory, unmount_shared_memory
from enforcer.nvml.client import NvmlClient, NvmlTimeouts
from enforcer.nvml.driver_root import HERE, DriverRoot
from enforcer.nvml.worker_handle import command
from enforcer.runtime.logs import configure_logging
from gpushare.errors import GpuShareError, QuantityError
from gpushare.patterns import Pattern
from gpushare.quantity import parse_memory
from gpushare.reasons import Reason

ABOUT: Final = (
    "Start the MPS control daemons of this node when the enforcer asks. On SIGTERM, end the daemons and the contexts "
    "of their clients. Exit codes: 0 stopped by a signal; 1 the socket or the shared memory cannot be made; "
    "2 an option is wrong."
)
POLL_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0
NVML_SECONDS: Final = 5.0
"""For one question at the end. A driver that hangs is given up: the pod has to be gone in 30 s."""
PEER: Final = struct.Struct("3i")
"""pid, uid, gid: what the kernel says of who is at the other end."""
_PERCENT: Final = Pattern(r"[1-9][0-9]?%", 3)

log = structlog.get_logger()


class Host:
    """The daemons by their directories.

    Args:
        run: directory shared with the enforcer.
        driver: the node's.
        modes: a door to compute modes, for several threads, which are set back at the end; ``None``: they are nobody's
            business.
    """

    def __init__(self, run: Path, driver: DriverRoot, modes: ComputeModes | None = None) -> None:
        self._run, self._driver, self._modes = run, driver, modes
        self._daemons: dict[Path, subprocess.Popen[bytes]] = {}
        self._gpus: dict[Path, str] = {}

    def answer(self, line: bytes) -> Mapping[str, object]:
        """Do what a request asks, and say what came of it."""
        try:
            asked = launcher.read_request(line, self._run)
            return {"host": os.getpid()} if asked is None else {"pid": self._daemon(*asked).pid}
        except (GpuShareError, ValueError, OSError, RecursionError) as error:
            log.warning("MPS daemon not started", reason=str(Reason.MPS_UNREACHABLE), error=str(error))
            return {"error": str(error)}

    def reap(self) -> None:
        """Forget those that have ended."""
        for directory in [each for each, daemon in self._daemons.items() if daemon.poll() is not None]:
            del self._daemons[directory]

    def stop(self) -> None:
        """End all of them and give the GPUs their compute modes back, for their next user.

        Side by side: one that hangs takes its patience, and the pod has 30 s for however many GPUs.
        """
        if self._gpus:
            with ThreadPoolExecutor(len(self._gpus)) as pool:
                list(pool.map(self._end, self._gpus.values(), self._gpus.keys()))

    def _end(self, gpu: str, directory: Path) -> None:
        try:
            program, environment = self._driver.program(), self._driver.environment(self._run)
            MpsDaemon(gpu, directory, program, limit_mib=0, modes=self._modes, environment=environment).stop()
        except GpuShareError as error:
            log.warning(
                "MPS daemon did not stop, or its GPU's compute mode is not restored",
                reason=str(error.reason),
                gpu=gpu,
                error=error.message,
            )
        if process := self._daemons.get(directory):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)

    def _daemon(self, gpu: str, directory: Path) -> subprocess.Popen[bytes]:
        """One daemon for each directory: a second request while it runs gets the same one."""
        self.reap()
        if directory not in self._daemons:
            environment = self._driver.environment(self._run)
            self._daemons[directory] = launcher.ChildLauncher().launch(
                gpu, directory, self._driver.program(), environment
            )
            self._gpus[directory] = gpu
            log.info("MPS control daemon started", reason=str(Reason.MPS_STARTED), gpu=gpu)
        return self._daemons[directory]


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM; returns the exit code."""
    options = _parser().parse_args(argv)
    configure_logging()
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # before anything is made that has to be taken away again
        signal.signal(number, lambda found, _: stopping.append(found))
    try:
        _share_memory(options)
        listener = listen(options.run)
    except OSError as error:
        sys.stderr.write(f"gpu-share mps: --run {options.run}: {error}\n")
        return 1
    modes = NvmlClient(command(options.driver_root), NvmlTimeouts(deadline=NVML_SECONDS))
    host = Host(options.run, DriverRoot(options.driver_root), modes)
    with listener:
        while not stopping:
            serve(listener, host)
            host.reap()
    host.stop()
    modes.stop()
    _withdraw_memory(options)
    return 0


def _share_memory(options: argparse.Namespace) -> None:
    """Make it before the first daemon comes, or take over one that was left by a host that was killed.

    Raises:
        OSError: it cannot be made.
    """
    if options.shared_memory is None:
        _withdraw_memory(options)
    elif not mount_shared_memory(launcher.shared_memory_of(options.run), options.shared_memory):
        log.warning(
            "shared memory of MPS has no size limit: gpu-share mps may not mount a tmpfs (CAP_SYS_ADMIN)",
            reason=str(Reason.MPS_STARTED), folder=str(launcher.shared_memory_of(options.run)),
        )  # fmt: skip


def _withdraw_memory(options: argparse.Namespace) -> None:
    if not unmount_shared_memory(launcher.shared_memory_of(options.run)):
        log.warning(
            "shared memory of MPS still mounted on the node: run umount on the node",
            reason=str(Reason.MPS_STOPPED), folder=str(launcher.shared_memory_of(options.run)),
        )  # fmt: skip


def listen(run: Path) -> socket.socket:
    """Make the socket, which only root can open. Raises ``OSError``."""
    folder = run / launcher.FOLDER
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    made = folder / f".{launcher.SOCKET}.new"
    made.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        listener.bind(str(made))
        listener.listen()
        made.rename(folder / launcher.SOCKET)  # a client that sees it can connect
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def serve(listener: socket.socket, host: Host, patience: float = POLL_SECONDS) -> None:
    """Answer one request, if one comes in time. Nobody who connects can hold up the others for long."""
    if not select.select([listener], [], [], patience)[0]:
        return
    with suppress(OSError), listener.accept()[0] as channel:
        channel.settimeout(launcher.SECONDS)
        uid = PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1]
        if uid == os.geteuid():
            answer = host.answer(channel.makefile("rb").readline(launcher.LIMIT))
            channel.sendall(json.dumps(answer).encode() + b"\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-share mps", description=ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add("--run", type=Path, default=Path("/run/gpu-share"), help="directory shared with the enforcer (%(default)s)")
    add("--driver-root", type=Path, default=HERE, help="root of the node's NVIDIA driver (%(default)s)")
    add(
        "--shared-memory", type=_memory, metavar="SIZE",
        help="share a /dev/shm of this size, such as 1Gi or 50%% of the node's memory, with all MPS clients "
        "(default: each container has its own /dev/shm)",
    )  # fmt: skip
    return parser


def _memory(text: str) -> str:
    """A size as tmpfs takes it."""
    if _PERCENT.fullmatch(text):
        return text
    try:
        return f"{parse_memory(text)}m"
    except QuantityError as error:
        raise argparse.ArgumentTypeError(error.message) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
