"""Loopback ports for servers that are told where to listen, some time before they do."""

import fcntl
import socket
from contextlib import suppress
from typing import Final

from tests.testbed.cluster.binaries import cache_root

FIRST, LAST = 20000, 31999
"""Below those the kernel takes for connections and for whoever asks for any port."""
FILE: Final = "ports"


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different, which no other test of this user is given soon: they go round."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / FILE).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        at = int(file.read() or FIRST)
        found: list[int] = []
        while len(found) < count:
            found += [at] if _free(at) else []
            at = at + 1 if at < LAST else FIRST
        file.truncate(0)
        file.write(str(at))
    return found


def _free(port: int) -> bool:
    with suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
