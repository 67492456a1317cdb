"""The process that calls NVML: ``python -m enforcer.nvml.worker DRIVER_ROOT``. Its input is a socket to the enforcer.

It imports little and keeps nothing the enforcer would miss. It ends with the enforcer: at once, even from within a call
that hangs, unless the kernel itself holds it there.
"""

import gc
import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from enforcer.nvml import wire
from enforcer.nvml.driver_root import DriverRoot
from enforcer.nvml.reader import NvmlReader, read_rows_lightly
from enforcer.nvml.types import ComputeMode
from gpushare.errors import NvmlError

ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def main(argv: Sequence[str]) -> int:
    """Answer until the enforcer has gone; returns the exit code."""
    read_rows_lightly()
    reader = NvmlReader(driver=DriverRoot(Path(argv[0])))
    gc.freeze()  # what is loaded stays: garbage is looked for in what comes after
    with socket.socket(fileno=sys.stdin.fileno()) as door:
        threading.Thread(target=_end_with, args=[door.fileno()], name="end", daemon=True).start()
        for line in door.makefile("rb"):
            door.sendall(answer(reader, line))
    return 0


def answer(reader: NvmlReader, line: bytes) -> bytes:
    """Answer one question."""
    number, what, arguments = wire.decode_request(line)
    try:
        if what == "set_compute_mode":
            arguments = (arguments[0], ComputeMode(arguments[1]))
        return wire.encode_result(number, getattr(reader, what)(*arguments))
    except NvmlError as error:
        return wire.encode_error(number, error)


def _end_with(door: int) -> None:
    """Wait for the other side to go. A call that hangs leaves the main thread no chance to see that."""
    ends = select.poll()
    ends.register(door, select.POLLRDHUP)
    while not any(seen & ENDED for _, seen in ends.poll()):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
