"""Where processes in containers hold simulated memory: they say so over a connection, and the kernel says who they are.

A tenant in a pid namespace of its own cannot name itself, and must not touch the machine's files. So it connects to a
socket (``TENANTS``) in a folder that is mounted into its container: the MPS daemon's pipe directory, or a device folder
of the simulator where there is no MPS. The other end runs in the host's pid namespace, learns the true pid from the
socket and writes the holding down. What ends without a word is seen by its connection. One that says ``hide`` gets a
descriptor that alone holds so many MiB (``exports.py``), is told ``hidden``, and holds nothing else.

Packets are JSON objects. A tenant says ``hold`` (MiB in all), and with its first packet ``limit`` (MiB or null) and
``over`` (the limit shall not bind it). It is told ``held`` and ``limit``, or ``error`` (CUDA's number) and ``said``, or
``wait``; unasked, ``error`` when its context was taken away. A client of MPS is told ``shm`` at first: the file in its
/dev/shm that it has to open (``mps_file.py``).
"""

import json
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.fakes.gpu import exports
from tests.fakes.gpu.state import OutOfGpuMemoryError, Sim, started

TENANTS: Final = "tenants"
OUT_OF_MEMORY, UNAVAILABLE, CLIENT_TERMINATED = 2, 46, 810
EXCLUSIVE_PROCESS: Final = 3
LOOK: Final = 0.1
"""Seconds between looks for those whose context was taken away."""
Packet = dict[str, Any]
Admit = Callable[[int, int], Packet]
"""pid and uid to ``{}``, ``{"limit": MiB}``, ``{"wait": True}`` or an error."""


@dataclass(slots=True)
class Tenant:
    """One connection: whose, and what was agreed when it first asked."""

    pid: int
    uid: int
    start: int | None
    joined: bool = False
    limit: int | None = None


class Tenants:
    """The holders of one GPU's memory that came over a socket.

    Args:
        sim: the machine.
        gpu: UUID.
        kind: the list of NVML's in which they stand, ``mps`` or ``compute``.
        admit: asked once about each.
        lock: held while anything is done.
    """

    def __init__(
        self, sim: Sim, gpu: str, kind: str, admit: Admit, lock: AbstractContextManager[Any] | None = None
    ) -> None:
        self._sim, self._gpu, self._kind, self._admit = sim, gpu, kind, admit
        self._lock = lock or threading.Lock()
        self._selector = selectors.DefaultSelector()

    def listen(self, folder: Path) -> None:
        """Take connections in that folder, from a thread that ends with the process."""
        (folder / TENANTS).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"{folder}/{TENANTS}")
        (folder / TENANTS).chmod(0o666)
        listener.listen(64)
        self._selector.register(listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name=TENANTS, daemon=True).start()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(LOOK):
                with self._lock:
                    # Sockets alone are registered, where the selector would take descriptors too.
                    self._take(key.fileobj) if key.data is None else self._hear(key.fileobj, key.data)  # type: ignore[arg-type]
            with self._lock:
                self._tell_the_struck()

    def _take(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._selector.register(connection, selectors.EVENT_READ, Tenant(pid, uid, started(pid)))

    def _hear(self, connection: socket.socket, tenant: Tenant) -> None:
        try:
            packet = connection.recv(65536)
            asked = json.loads(packet) if packet else {}
            if "hide" in asked:
                self._hide(connection, int(asked["hide"]))
                return
            if packet:
                connection.send(json.dumps(self._answer(tenant, asked)).encode())
                return
        except (ConnectionError, ValueError, KeyError, TypeError):
            pass
        self._end(connection, tenant)

    def _hide(self, connection: socket.socket, mib: int) -> None:
        descriptor = exports.make(self._sim.folder / exports.FOLDER, self._gpu, mib)
        socket.send_fds(connection, [json.dumps({"hidden": mib}).encode()], [descriptor])
        os.close(descriptor)

    def _end(self, connection: socket.socket, tenant: Tenant) -> None:
        self._selector.unregister(connection)
        connection.close()
        if tenant.start is not None and started(tenant.pid) in {tenant.start, None}:
            self._sim.free(tenant.pid, self._gpu)

    def _answer(self, tenant: Tenant, asked: Packet) -> Packet:
        if error := self._sim.struck(tenant.pid):
            return refusal(error, "its context was taken away")
        if not tenant.joined:
            found = self._admit(tenant.pid, tenant.uid)
            if "error" in found or "wait" in found:
                return found
            limits = [mib for mib in (found.get("limit"), asked.get("limit")) if mib]
            tenant.joined, tenant.limit = True, None if asked.get("over") or not limits else min(limits)
            file = {"shm": found["shm"]} if "shm" in found else {}
            return {**self._hold(tenant, int(asked["hold"])), **file}
        return self._hold(tenant, int(asked["hold"]))

    def _hold(self, tenant: Tenant, mib: int) -> Packet:
        if tenant.limit is not None and mib > tenant.limit:
            return refusal(OUT_OF_MEMORY, f"out of memory: {mib} MiB asked for, the client's limit is {tenant.limit}")
        used = self._used_by(tenant.pid)
        try:
            if mib > used:
                self._sim.allocate(tenant.pid, self._gpu, mib - used, self._kind)
            else:
                self._sim.register(tenant.pid, self._gpu, mib, self._kind)
        except OutOfGpuMemoryError as error:
            return refusal(OUT_OF_MEMORY, f"out of memory: {error}")
        return {"used": mib, "limit": tenant.limit}

    def _used_by(self, pid: int) -> int:
        mine = self._sim.processes().get(pid, ())
        return sum(each.memory_mib or 0 for each in mine if (each.gpu, each.kind) == (self._gpu, self._kind))

    def _tell_the_struck(self) -> None:
        for key in list(self._selector.get_map().values()):
            tenant = key.data
            if tenant is not None and tenant.joined and (error := self._sim.struck(tenant.pid)):
                tenant.joined = False
                with suppress(ConnectionError):
                    key.fileobj.send(json.dumps(refusal(error, "MPS client terminated")).encode())  # type: ignore[union-attr]


def refusal(error: int, message: str) -> Packet:
    """An error as CUDA would report it."""
    return {"error": error, "message": message}


def plain(sim: Sim, gpu: str) -> Admit:
    """Admission without MPS: the compute mode decides."""

    def admit(_pid: int, _uid: int) -> Packet:
        if sim.compute_mode(gpu) != EXCLUSIVE_PROCESS:
            return {}
        return refusal(UNAVAILABLE, f"all CUDA-capable devices are busy or unavailable: {gpu} is for MPS alone")

    return admit
