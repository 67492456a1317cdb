"""Plays a CUDA program: a real process that says "I hold N MiB on GPU X", grows, forks, ignores SIGTERM if told to.

    python -m tests.fakes.gpu.tenant --gpu GPU-... --mib 4096 --grow-to 9000 --after 3 --ignore-term --fork 2 --kind mps

Prints a line ``ready pid=<pid> mib=<n>`` as soon as it holds its memory and ``grown ...`` after it grew. A refused
allocation ends it with status 1 and CUDA's words, as it would a real program.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from tests.fakes.gpu import exports
from tests.fakes.gpu.state import KINDS, OutOfGpuMemoryError, Sim

POLL: Final = 0.05


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(prog="tenant", description="a process that holds simulated GPU memory")
    options.add_argument("--gpu", help="UUID (default: CUDA_VISIBLE_DEVICES, else the machine's first)")
    options.add_argument("--mib", type=int, required=True, help="MiB of GPU memory from the start")
    options.add_argument("--grow-to", type=int, help="MiB of GPU memory after --after seconds")
    options.add_argument("--step", type=int, help="grow by this many MiB every 50 ms instead of at once")
    options.add_argument("--after", type=float, default=1.0, help="seconds until it grows (default 1)")
    options.add_argument("--seconds", type=float, help="end by itself after this long (default: never)")
    options.add_argument("--kind", choices=KINDS, default="compute", help="which of NVML's lists it stands in")
    options.add_argument("--fork", type=int, default=0, help="children that each hold as much")
    options.add_argument("--ignore-term", action="store_true", help="only SIGKILL ends it")
    options.add_argument("--hidden", type=int, default=0, help="MiB that only a descriptor holds; with --mib 0 no row")
    unseen = options.add_mutually_exclusive_group()
    options.add_argument("--unread", action="store_true", help="that descriptor is in a message that nobody reads")
    unseen.add_argument("--managed", type=int, default=0, help="MiB of managed memory, which no row shows")
    unseen.add_argument("--late", type=float, help="seconds until its row shows what it took")
    unseen.add_argument("--unchecked", action="store_true", help="hold it even where the card has no room")
    return options


class Tenant:
    """One process and what it holds."""

    def __init__(self, sim: Sim, options: argparse.Namespace) -> None:
        self._sim, self._options, self._holds = sim, options, 0
        self._shown: float | None = None
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._gpu = options.gpu or (visible if visible.startswith("GPU-") else sim.machine.gpus[0].uuid)

    def hold(self, mib: int, word: str) -> None:
        """Hold ``mib`` in all. Raises ``OutOfGpuMemoryError``."""
        late: float | None = self._options.late
        if self._options.unchecked:
            self._sim.register(os.getpid(), self._gpu, mib, self._options.kind)
        elif mib > self._holds:
            self._allocate(mib - self._holds, unseen=late is not None)
            self._shown = None if late is None else time.monotonic() + late
        self._holds = mib
        print(f"{word} pid={os.getpid()} mib={mib}", flush=True)

    def hide(self) -> None:
        """Take what stands in no row. Raises ``OutOfGpuMemoryError``."""
        if self._options.managed:
            self._allocate(self._options.managed, unseen=True)
        if mib := self._options.hidden:
            left = self._sim.gpu(self._gpu).usable_mib - self._sim.used(self._gpu)
            if mib > left:
                raise OutOfGpuMemoryError(f"{self._gpu} has {left} MiB left, {mib} MiB were asked for")
            self._descriptor = exports.make(self._sim.folder / exports.FOLDER, self._gpu, mib)
            if self._options.unread:
                self._sockets = socket.socketpair()
                socket.send_fds(self._sockets[0], [b"x"], [self._descriptor])
                os.close(self._descriptor)

    def _allocate(self, mib: int, *, unseen: bool) -> None:
        self._sim.allocate(os.getpid(), self._gpu, mib, self._options.kind, "device" if unseen else "both")

    def live(self, parent: int | None) -> None:
        """Grow when it is time; end with the parent, or when the time is up."""
        options, begun = self._options, time.monotonic()
        while options.seconds is None or time.monotonic() - begun < options.seconds:
            if parent is not None and os.getppid() != parent:
                return
            if self._shown is not None and time.monotonic() >= self._shown:
                self._sim.show(os.getpid())
                self._shown = None
            if self._holds and self._shown is None and os.getpid() not in self._sim.processes():
                # MPS took it away: every call fails from now on, the process lives.
                print(f"CUDA error: MPS client terminated (810) pid={os.getpid()}", flush=True)
                self._holds, options.grow_to = 0, None
            if options.grow_to and self._holds < options.grow_to and time.monotonic() - begun >= options.after:
                step = options.step or options.grow_to
                self.hold(min(options.grow_to, self._holds + step), "grown")
            time.sleep(POLL)


def main(argv: Sequence[str]) -> int:
    """Run the tenant until it is killed or its time is up."""
    options = parser().parse_args(argv)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first = os.getpid()
    parent = None
    for _ in range(options.fork):
        if os.fork() == 0:
            parent = first
            break
    tenant = Tenant(Sim.from_environment(), options)
    try:
        tenant.hide()
        tenant.hold(options.mib, "ready")
        tenant.live(parent)
    except OutOfGpuMemoryError as error:
        print(f"CUDA error: out of memory: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
