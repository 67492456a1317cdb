"""Close idle connections that block the control socket of an MPS daemon, without killing their owners.

The daemon serves one connection at a time and waits for its command without end. So a silent connection
stops every administration (observed on 535.309.01), and every tenant can connect. The kernel shows who it is: a thread
of the daemon waits in a read of one descriptor. ``pidfd_getfd`` lends us that very connection; it says who made it, and
shut down from our side it ends for the daemon as if its maker had closed it. No process has to be killed for that, also
not where the maker handed the connection on and is gone. A client that waits for its server is not read from, and so
never taken for a silent one. The daemon's own servers hold connections to this socket too, from which it reads their
answers: without that connection a server is in FAULT and its clients are lost (seen on an H100, driver 580.159.04).

It needs Linux 5.6 and CAP_SYS_PTRACE; without them nothing is found, and a blocked daemon stays blocked.
"""

import ctypes
import os
import platform
import socket
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from enforcer.attribution.procfs import CgroupAttributor, PidHandle
from enforcer.mps.incidents import Incident, IncidentLog
from gpushare.reasons import Reason

MAX_THREADS: Final = 64
PIDFD_GETFD: Final = 438
READS: Final = {"x86_64": frozenset({0, 45, 47}), "aarch64": frozenset({63, 207, 212})}
"""read, recvfrom, recvmsg."""
PEER: Final = struct.Struct("3i")
CONTROL: Final = "/control"


class ControlSocket:
    """The control socket of one daemon.

    Args:
        gpu: for the log.
        incidents: takes each connection that was closed.
    """

    def __init__(self, gpu: str, incidents: IncidentLog) -> None:
        self._gpu, self._incidents = gpu, incidents
        self._attributor = CgroupAttributor()

    def idle_connections(self, daemon: int, ours: int) -> dict[int, socket.socket]:
        """Connections the daemon waits for now, by inode, but those of ``ours`` and of its servers.

        The caller closes them. A tenant's process is no child of the daemon.
        """
        handle = PidHandle.open(daemon)
        if handle is None:
            return {}
        with handle:
            lent = [_lend(handle, descriptor) for descriptor in sorted(set(waiting(daemon, READS)))]
        found, spared = {}, {ours, *family(daemon)[1:]}
        for connection in filter(None, lent):
            if _at_the_door(connection) and _peer(connection)[0] not in spared:
                found[os.fstat(connection.fileno()).st_ino] = connection
            else:
                connection.close()
        return found

    def close_connection(self, connection: socket.socket) -> None:
        """End a connection for both sides, and say whose it was: to operators, in the log, and to nobody else.

        Its maker's pid may be another's by now, so nobody is ended on its account.
        """
        pid, uid = _peer(connection)
        identity = self._attributor.identify(pid) if pid > 0 else None
        owner = None if identity is None else identity.owner
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        note = f"the enforcer closed a silent connection to the MPS control socket of {self._gpu}"
        whose = {} if owner is None else {"pod_uid": owner.pod_uid, "container_id": owner.container_id}
        self._incidents.record(Incident(self._gpu, Reason.MPS_CONTROL_BLOCKED, note), pid=pid, uid=uid, **whose)


def waiting(pid: int, calls: Mapping[str, Collection[int]]) -> Iterator[int]:
    """Descriptors that threads of a process wait for in one of these system calls, by machine."""
    wanted = calls.get(platform.machine(), ())
    with suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir())[:MAX_THREADS]:
            words = (task / "syscall").read_text().split()
            if len(words) > 1 and words[0].isdigit() and int(words[0]) in wanted:
                yield int(words[1], 16)


def family(pid: int) -> list[int]:
    """Return a process and its children: a daemon and its servers."""
    found = [pid]
    with suppress(OSError, ValueError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir())[:MAX_THREADS]:
            found += map(int, (task / "children").read_text().split())
    return found


def _lend(handle: PidHandle, descriptor: int) -> socket.socket | None:
    """The same open connection in our own hand; ``None`` where it is no socket, or we may not."""
    found = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, handle.fileno(), descriptor, 0)
    if found < 0:
        return None
    try:
        return socket.socket(fileno=found)
    except OSError:
        os.close(found)
        return None


def _at_the_door(connection: socket.socket) -> bool:
    """Whether it is a connection to the socket on which commands are given."""
    if connection.family != socket.AF_UNIX or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    name = connection.getsockname()
    return isinstance(name, str) and name.endswith(CONTROL)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of who connected."""
    pid, uid, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    return pid, uid
