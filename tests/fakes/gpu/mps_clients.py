"""Who is a client of the stand-in's MPS server: what CUDA programs are told when they ask, and what becomes of them.

A program says ``JOIN`` on the control socket; the daemon knows pid and user from the socket. The answer is one line of
TAB-separated ``key=value`` parts that ``process.c`` reads: ``error`` (CUDA's number), ``wait`` (ask again), or
``gpus``, ``server``, ``percentage``, ``limits`` and ``shm``, the server's file in /dev/shm (``mps_file.py``).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from tests.fakes.gpu.mps_words import percentage
from tests.fakes.gpu.state import Sim, started
from tests.fakes.gpu.world import number

JOIN: Final = "\x01join"
NOT_READY, MAX_CLIENTS = 807, 808
LAUNCH_FAILED: Final = 719


class Clients:
    """The clients of one daemon, each with its user, and the settings its server began with."""

    def __init__(self, sim: Sim, gpu: str) -> None:
        self._sim, self._gpu = sim, gpu
        self._users: dict[int, tuple[int, int | None]] = {}
        self._limits: dict[int, dict[str, int]] = {}
        self._percentage: dict[int, str] = {}

    def serve(self, server: int, limits: Mapping[str, int], percent: str) -> None:
        """A server has begun: defaults reach the next server, never one that runs."""
        self._limits[server], self._percentage[server] = dict(limits), percent
        for gpu in self._gpus():
            self._sim.serve(gpu, server)
            if mib := number(self._sim, "server_mib"):
                self._sim.register(server, gpu, mib)

    def limits(self, server: int) -> dict[str, int]:
        """What clients of a server are limited to from now on, by device."""
        return self._limits[server]

    def percentage(self, server: int, new: str = "") -> str:
        """Share of the multiprocessors for clients of a server from now on, changed where a proper one is given."""
        self._percentage[server] = percentage(new, self._percentage[server])
        return self._percentage[server]

    def unfit(self, uid: int, *, multiuser: bool) -> str:
        """Why nobody, or nobody of that user, is served now; empty where he is."""
        present = self._present()
        scripted = self._sim.mps_fault("get_server_status")
        if self._sim.faulted(self._gpu) or (scripted is not None and "FAULT" in (scripted.answer or "")):
            return f"error={NOT_READY}"
        if not multiuser and any(user != uid for user in present.values()):
            return "wait=1" if number(self._sim, "foreign_uid_waits") else f"error={NOT_READY}"
        return f"error={MAX_CLIENTS}" if len(present) >= number(self._sim, "max_clients") else ""

    def admit(self, pid: int, uid: int, server: int, file: str) -> str:
        """Count it in, and say under what; ``file`` is the name of the server's in /dev/shm."""
        self._users[pid] = uid, started(pid)
        gpus = self._gpus()
        limits = {self._uuid(device): mib for device, mib in self._limits[server].items() if mib}
        parts = {
            "gpus": ",".join(gpus), "server": server, "percentage": int(float(self._percentage[server])),
            "limits": ",".join(f"{gpu}={mib}M" for gpu, mib in limits.items()), "shm": file,
        }  # fmt: skip
        return "\t".join(f"{key}={value}" for key, value in parts.items())

    def end(self, pid: int, error: int) -> None:
        """Take its context away; the process lives, and every call of it fails."""
        self._users.pop(pid, None)
        self._sim.strike(pid, self._gpu, error, fault=pid in self._sim.faulted(self._gpu))
        self._sim.free(pid, self._gpu)
        if xid := number(self._sim, "terminate_xid"):
            self._sim.raise_xid(self._gpu, xid)

    def hurt(self, neighbours: Iterable[int]) -> None:
        """What ending one does to the others, if anything: 1 errors, 2 wrong answers."""
        harm = number(self._sim, "terminate_hurts_neighbours")
        for pid in neighbours if harm else ():
            self._sim.strike(pid, self._gpu, 0 if harm == 2 else LAUNCH_FAILED, wrong=harm == 2)

    def _present(self) -> dict[int, int]:
        """Users of the clients that live, by pid."""
        self._users = {pid: row for pid, row in self._users.items() if row[1] is not None and started(pid) == row[1]}
        return {pid: uid for pid, (uid, _) in self._users.items()}

    def _gpus(self) -> list[str]:
        return [self._gpu] if self._gpu else [gpu.uuid for gpu in self._sim.machine.gpus]

    def _uuid(self, device: str) -> str:
        gpus = self._gpus()
        return gpus[int(device)] if device.isdigit() and int(device) < len(gpus) else device
