"""The stand-in's daemon of MPS protocol 3: servers and namespaces, asked by the program's arguments.

From documentation ("MPS v3 Interface", "MPS v3 Namespaces"), and where that is silent from what others saw on driver
615. A namespace is a folder with a ``control`` of its own; who comes through it has its limits. Nobody here has the
real one, so nothing holds this to it.
"""

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.fakes.gpu.mps_clients import JOIN
from tests.fakes.gpu.mps_control import BETWEEN, END, GREETING, VERSION, WORDS
from tests.fakes.gpu.mps_daemon import RPC_FAILURE, Daemon, main
from tests.fakes.gpu.state import Sim
from tests.fakes.gpu.tenants import Tenants

DEFAULT = "default"
UNIT = {"K": 1 / 1024, "M": 1, "G": 1024}
SERVER_COLUMNS = "name,uid,pid,status,pipe-directory,allowed-devices,context-ids"
SPACE_COLUMNS = "name,server,server-status,pinned-memory-limit,active-thread-percentage,client-priority,pipe-directory"
CLIENT_COLUMNS = "pid,server,device,namespace,cmd"
OWNERS = ("server create", "server delete", "server set", "namespace create", "namespace delete", "namespace set")


class Refusal(Exception):
    """What is said with exit code 1."""


@dataclass(slots=True)
class Space:
    """A namespace: its limits in the words they were given in, and its clients."""

    limit: str = "-"
    percentage: str = "100"
    priority: str = "0"
    clients: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Server:
    """A server: its process, and its namespaces."""

    pid: int
    uid: int
    devices: str
    spaces: dict[str, Space] = field(default_factory=dict)


class NamespaceDaemon(Daemon):
    """One control daemon of protocol 3."""

    def __init__(self, pipe: Path, sim: Sim, gpu: str, *, multiuser: bool = False) -> None:
        super().__init__(sim, gpu, multiuser=multiuser)
        self._pipe, self._named = pipe, dict[str, Server]()

    def answer(self, line: str, uid: int | None = None) -> str:
        """What the program prints; the first character is its exit code, which the greeting has not."""
        if line == GREETING:
            return VERSION
        if not line.startswith(WORDS):
            return "1protocol 3 has no interactive commands; see --help\n"
        words = line.removeprefix(WORDS).split(BETWEEN)
        try:
            return f"0{self._do(words, 0 if uid is None else uid)}"
        except Refusal as refusal:
            return f"1{refusal}\n"

    def join(self, pid: int, uid: int) -> str:
        """Who comes through the daemon's own socket is of the first server's ``default``."""
        server = next(iter(self._named.values()), None)
        return "error=805" if server is None else self._enter(server, server.spaces[DEFAULT], pid, uid)

    def servers(self) -> list[int]:
        """Pids of the servers; one that has died is on no list."""
        self._reap()
        self._named = {name: server for name, server in self._named.items() if server.pid in self._servers}
        return sorted(self._servers)

    def _do(self, words: list[str], uid: int) -> str:
        if words == ["--quit"]:
            self.quits = True
            return ""
        command, plain = " ".join(words[:2]), [each for each in words[2:] if not each.startswith("--")]
        flags = dict(each[2:].partition("=")[::2] for each in words[2:] if each.startswith("--"))
        scripted = self._sim.mps_fault(command)
        if scripted is not None and scripted.answer is not None:
            return scripted.answer
        if command in OWNERS and uid not in {0, os.getuid()}:
            raise Refusal(f"Insufficient privileges for UID {uid}. '{command.upper()}' requires server owner.")
        method = getattr(self, f"_{command.replace(' ', '_')}", None)
        if method is None:
            raise Refusal(f"Unknown command {command!r}")
        self.servers()
        return str(method(plain, flags))

    def _server_create(self, names: list[str], flags: Mapping[str, str]) -> str:
        (name,) = names
        if name in self._named:
            raise Refusal(f"Server '{name}' already exists")
        devices = flags.get("allowed-devices", "")
        if self._multiuser and flags.get("uid", "0") != "0":
            raise Refusal("In multiuser mode, only --uid=0 is allowed")
        if devices and devices not in {gpu.uuid for gpu in self._sim.machine.gpus}:
            return ""  # it is said to be created, and vanishes
        self._spawn(int(flags.get("uid", "0")))
        server = Server(max(self._servers), int(flags.get("uid", "0")), devices)
        self._named[name] = server
        self._open(name, DEFAULT, server)
        return ""

    def _server_list(self, names: list[str], flags: Mapping[str, str]) -> str:
        rows = [
            f"{name},{server.uid},{server.pid},{self._status()},{self._pipe / name},{server.devices},-"
            for name, server in self._named.items()
            if name in (names or [name])
        ]
        return _table(SERVER_COLUMNS, rows, flags)

    def _server_set(self, names: list[str], flags: Mapping[str, str]) -> str:
        _change(self._server(names[0]).spaces[DEFAULT], flags)
        return ""

    def _server_delete(self, names: list[str], flags: Mapping[str, str]) -> str:
        server = self._server(names[0])
        if any(self._present(space) for space in server.spaces.values()) and "force" not in flags:
            raise Refusal(f"Server '{names[0]}' has active clients")
        self._kill(server.pid)
        return ""

    def _namespace_create(self, names: list[str], flags: Mapping[str, str]) -> str:
        server = self._server(flags["server"])
        if not all(each.islower() or each.isdigit() or each == "_" for each in names[0]) or len(names[0]) > 64:
            raise Refusal(f"Invalid namespace name '{names[0]}'")
        if names[0] in server.spaces:
            raise Refusal(f"Namespace '{names[0]}' already exists")
        self._open(flags["server"], names[0], server)
        return ""

    def _namespace_set(self, names: list[str], flags: Mapping[str, str]) -> str:
        space = self._space(names[0], flags)
        if self._present(space):
            raise Refusal(f"Namespace '{names[0]}' has active clients")
        _change(space, flags)
        return ""

    def _namespace_delete(self, names: list[str], flags: Mapping[str, str]) -> str:
        if self._present(self._space(names[0], flags)) and "force" not in flags:
            raise Refusal(f"Namespace '{names[0]}' has active clients")
        del self._server(flags["server"]).spaces[names[0]]
        folder = self._pipe / flags["server"] / names[0]
        for entry in list(folder.iterdir()):
            entry.unlink()
        folder.rmdir()
        return ""

    def _namespace_list(self, names: list[str], flags: Mapping[str, str]) -> str:
        rows = [
            f"{each},{name},{self._status()},{space.limit},{space.percentage},{space.priority},"
            f"{self._pipe / name / each}"
            for name, server in self._named.items()
            if name == flags.get("server", name)
            for each, space in server.spaces.items()
            if each in (names or [each])
        ]
        return _table(SPACE_COLUMNS, rows, flags)

    def _client_list(self, _: list[str], flags: Mapping[str, str]) -> str:
        rows = [
            f"{pid},{name},{self._gpu},{name}/{each} (0),{_command(pid)}"
            for name, server in self._named.items()
            if name == flags.get("server", name)
            for each, space in server.spaces.items()
            for pid in self._present(space)
        ]
        return _table(CLIENT_COLUMNS, rows, flags)

    def _client_terminate(self, names: list[str], _: Mapping[str, str]) -> str:
        pid = int(names[0])
        if pid not in self.clients():
            raise Refusal(f"Client {pid} not found")
        self._joined.end(pid, 810)
        for server in self._named.values():
            for space in server.spaces.values():
                space.clients.discard(pid)
        return ""

    def _present(self, space: Space) -> list[int]:
        """Those that still hold memory; who merely registered some, as simple tests do, counts as of ``default``."""
        known = {pid for server in self._named.values() for each in server.spaces.values() for pid in each.clients}
        here = self.clients()
        mine = [pid for pid in here if pid in space.clients]
        first = next(iter(self._named.values())).spaces[DEFAULT]
        return mine + ([pid for pid in here if pid not in known] if space is first else [])

    def _status(self) -> str:
        return "Fault" if self._sim.faulted(self._gpu) else "Ready"

    def _server(self, name: str) -> Server:
        if name not in self._named:
            raise Refusal(f"Server '{name}' not found")
        return self._named[name]

    def _space(self, name: str, flags: Mapping[str, str]) -> Space:
        server = self._server(flags.get("server", ""))
        if name not in server.spaces:
            raise Refusal(f"Namespace '{name}' not found")
        return server.spaces[name]

    def _open(self, server: str, name: str, of: Server) -> None:
        """Make a namespace with its folder, and serve it."""
        space = of.spaces[name] = Space()
        folder = self._pipe / server / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "control").unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"{folder}/control")
        (folder / "control").chmod(0o666)
        listener.listen(16)

        def enter(pid: int, uid: int) -> str:
            return self._enter(of, space, pid, uid)

        Tenants(self._sim, self._gpu, "mps", lambda pid, uid: self.packet(enter(pid, uid)), self.lock).listen(folder)
        threading.Thread(target=self._serve, args=(listener, enter), daemon=True).start()

    def _enter(self, server: Server, space: Space, pid: int, uid: int) -> str:
        """What a process is told that comes through a namespace's folder."""
        if server.pid not in self.servers():
            return f"error={RPC_FAILURE}"
        mib = int(int(space.limit[:-1]) * UNIT[space.limit[-1]]) if space.limit[:-1].isdigit() else 0
        self._joined.serve(server.pid, {self._gpu: mib} if mib else {}, space.percentage)
        found = self._joined.unfit(uid, multiuser=self._multiuser) or self._joined.admit(pid, uid, server.pid)
        if not found.startswith(("error", "wait")):
            space.clients.add(pid)
        return found

    def _serve(self, listener: socket.socket, enter: Callable[[int, int], str]) -> None:
        while True:
            with listener.accept()[0] as connection, suppress(ConnectionError):
                pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                for packet in iter(lambda: connection.recv(65536), b""):
                    line = packet.rstrip(END).decode(errors="replace")
                    with self.lock:
                        reply = enter(pid, uid) if line == JOIN else self.answer(line, uid)
                    print(f"[Control {os.getpid()}] {line}", file=sys.stderr, flush=True)
                    connection.send(reply.encode() + END)


def _change(space: Space, flags: Mapping[str, str]) -> None:
    names = {"pinned-memory-limit": "limit", "active-thread-percentage": "percentage", "client-priority": "priority"}
    if not names.keys() & flags.keys():
        raise Refusal("At least one option is required")
    for flag, name in names.items():
        if flag in flags:
            setattr(space, name, _shown(flags[flag]) if name == "limit" else flags[flag])


def _shown(limit: str) -> str:
    """A limit as it is listed: in the largest unit that fits exactly."""
    mib = int(int(limit[:-1]) * UNIT[limit[-1]])
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def _table(head: str, rows: list[str], flags: Mapping[str, str]) -> str:
    kind, _, bare = flags.get("format", "table").partition(",")
    if kind != "csv":
        rows = [" ".join(f"{field:.3}..." for field in row.split(",")) for row in rows]
    return "".join(f"{row}\n" for row in ([] if bare else [head.upper() if kind != "csv" else head]) + rows)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:], make=partial(NamespaceDaemon, Path(sys.argv[2]))))
