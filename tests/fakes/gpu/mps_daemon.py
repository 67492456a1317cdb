"""The daemon of the stand-in for ``nvidia-cuda-mps-control``: answers one connection at a time, as the real one does.

So a client that connects and stays silent stops everything, here as there. Servers are real child processes that do
nothing; one is started on request, or when the GPU has MPS clients and no server yet.
"""

import fcntl
import os
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.fakes.gpu import mps_file
from tests.fakes.gpu.mps_clients import JOIN, NOT_READY, Clients
from tests.fakes.gpu.mps_words import DEVICES, device_and_limit, integer, memory, percentage, shown
from tests.fakes.gpu.state import Sim
from tests.fakes.gpu.tenants import Packet, Tenants, refusal
from tests.fakes.gpu.world import current, is_new, unless_new

END = b"\0"
MAX_PIPE = 87
MULTIUSER = "-multiuser-server"
WHERE_SUPPORTED = "-multiuser-server-where-supported"
"""What the simulator's program adds: on a node its daemons serve all users, unless the world says otherwise."""
FIFO, PRIVILEGED = "log", "control_privileged"
RPC_FAILURE, CLIENT_TERMINATED = 806, 810
SETTINGS = ". Control deamon settings can only be modified by the user who started it or by the root user."


class Daemon:
    """One control daemon: its settings, its servers, and what it answers."""

    def __init__(self, sim: Sim, gpu: str, *, multiuser: bool = False) -> None:
        self._sim, self._gpu, self._multiuser = sim, gpu, multiuser
        variable = os.environ.get
        self._percentage = percentage(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""), "100.0")
        self._priority = "1" if integer(variable("CUDA_MPS_CLIENT_PRIORITY", "")) == 1 else "0"
        self._limits: dict[str, int] = {}
        self._servers: dict[int, int] = {}
        self._ending: set[int] = set()
        self._joined = Clients(sim, gpu)
        self.lock = threading.Lock()
        """One thing is done at a time: tenants come over a socket of their own, in a thread of its own."""
        self.quits = False

    def answer(self, line: str, uid: int | None = None) -> str:
        """What the program prints for one line of input of that user."""
        words = line.split() or [""]
        refusal = "" if uid in {None, 0, os.getuid()} else self._refusal(words, uid)
        if refusal:
            return f"{refusal}\n"
        scripted = self._sim.mps_fault(words[0])
        if scripted is not None:
            time.sleep((scripted.hang_ms or 0) / 1000)
            if scripted.answer is not None:
                return scripted.answer
        method = getattr(self, f"_do_{words[0]}", None) if words[0].replace("_", "").isalpha() else None
        return f'Unknown command "{words[0]}"\n' if method is None else method(words[1:])

    def join(self, pid: int, uid: int) -> str:
        """What a process is told that wants to be a client: its server and the limits in force there, or why not."""
        if waiting := self._joined.unfit(uid, multiuser=self._multiuser):
            return waiting
        servers = self.servers()
        if servers and not self._multiuser and self._servers[servers[0]] != uid:
            # Single-user mode: the server of the last user ends, now that nobody uses it.
            self._kill(servers[0])
            servers = []
        if not servers:
            self._spawn(0 if self._multiuser else uid)
        if not (servers := self.servers()):
            return f"error={NOT_READY}"
        return self._joined.admit(pid, uid, servers[0], mps_file.name_of(servers[0], self._servers[servers[0]]))

    def admit(self, pid: int, uid: int) -> Packet:
        """The same for a tenant in a container (``tenants.py``)."""
        return self.packet(self.join(pid, uid))

    def packet(self, joined: str) -> Packet:
        """The answer of ``join`` as a packet for a tenant in a container."""
        reply = dict(part.split("=", 1) for part in joined.split("\t"))
        if "error" in reply:
            return refusal(int(reply["error"]), "MPS serves no further client now")
        if "wait" in reply:
            return {"wait": True}
        limits = dict(entry.split("=", 1) for entry in reply["limits"].split(",") if entry)
        needed = {"shm": reply["shm"]} if unless_new(self._sim, "shm_needed") else {}
        return {"limit": int(limits[self._gpu].removesuffix("M")) if self._gpu in limits else None, **needed}

    def _refusal(self, words: list[str], uid: int | None) -> str:
        """What the daemon says to a user who is neither root nor its own: as driver 580 does, before as 535."""
        refused = f"Insufficient privileges for UID {uid}" + (SETTINGS if is_new(self._sim) else "")
        if words[0] == "quit":
            return "Not enough privilege to execute quit command"
        if words[0] == "start_server" and words[1:] != ["-uid", str(uid)]:
            return refused
        switches = {"terminate_client": "terminate", "shutdown_server": "shutdown"}
        switch = "set" if words[0].startswith("set_") else switches.get(words[0])
        allowed = switch is None or unless_new(self._sim, f"foreign_uid_may_{switch}")
        return "" if allowed else f"{refused}\n800" if words[0] == "terminate_client" else refused

    def clients(self) -> list[int]:
        """Pids of the processes that hold memory of kind ``mps`` on this GPU."""
        found = self._sim.processes().items()
        return [pid for pid, holdings in found if any(h.gpu == self._gpu and h.kind == "mps" for h in holdings)]

    def servers(self) -> list[int]:
        """Pids of the servers; where there are clients there is one."""
        self._reap()
        for pid in self._ending & self._servers.keys():
            if not self.clients():
                self._kill(pid)
        if not self._servers and self.clients():
            self._spawn(0)
        return sorted(self._servers)

    def end(self) -> None:
        """End the servers."""
        for pid in list(self._servers):
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        mps_file.remove(pid, self._servers.pop(pid))

    def _reap(self) -> None:
        for pid in list(self._servers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                mps_file.remove(pid, self._servers.pop(pid))

    def _spawn(self, uid: int) -> None:
        """Start a server of that user; none comes up where its file cannot be made."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Nothing of the daemon's may be held by a server that outlives it for a moment, its lock least of all.
            os.closerange(3, 4096)
            while os.getppid() == parent:
                time.sleep(0.2)
            mps_file.remove(os.getpid(), uid)
            os._exit(0)
        self._servers[pid] = uid
        mode = current(self._sim)["multiuser_shm_mode"] if self._multiuser else f"{mps_file.OWN:o}"
        try:
            if unless_new(self._sim, "shm_needed"):
                mps_file.make(pid, uid, int(mode, 8))
        except OSError as error:
            print(f"[Control {os.getpid()}] server {pid}: {error}", file=sys.stderr, flush=True)
            self._kill(pid)
            return
        self._joined.serve(pid, self._limits, self._percentage)

    def _do_quit(self, _: list[str]) -> str:
        self.quits = True
        return ""

    def _do_get_server_list(self, _: list[str]) -> str:
        return "".join(f"{pid}\n" for pid in self.servers())

    def _do_start_server(self, words: list[str]) -> str:
        uid = integer(" ".join(words[1:])) if words[:1] == ["-uid"] else None
        if uid is None:
            return "A user id (UID) is required to start a new server\n"
        if not self._servers:
            self._spawn(uid)
        return ""

    def _do_get_server_status(self, words: list[str]) -> str:
        return self._unknown(words) or ("FAULT\n" if self._sim.faulted(self._gpu) else "ACTIVE\n")

    def _do_get_client_list(self, words: list[str]) -> str:
        return self._unknown(words) or "".join(f"{pid}\n" for pid in self.clients())

    def _do_ps(self, words: list[str]) -> str:
        unknown = self._unknown(words[1:]) if words[:1] == ["-p"] else ""
        if unknown:
            return f"{unknown}{unknown}\n"
        servers = self.servers()
        if not servers:
            return "Server not found\n"
        rows = (f"{pid} 0 {servers[0]} {self._gpu[:22]} 4026531836 tenant\n" for pid in self.clients())
        return "PID ID SERVER DEVICE NAMESPACE COMMAND\n" + "".join(rows)

    def _do_shutdown_server(self, words: list[str]) -> str:
        if self._unknown(words):
            return self._unknown(words)
        if "-f" not in words:
            self._ending.add(int(words[0]))
            self.servers()
            return ""
        for pid in self.clients():
            self._joined.end(pid, RPC_FAILURE)
        self._kill(int(words[0]))
        return ""

    def _do_device_query(self, _: list[str]) -> str:
        gpus = [gpu for gpu in self._sim.machine.gpus if self._gpu in {"", gpu.uuid}]
        head = "Device Ordinal  PCI IDs  UUID  Name  Attributes\n"
        rows = "".join(f"{at}  0000:00.{at + 6:02}.00  {gpu.uuid}  {gpu.name}  N/A\n" for at, gpu in enumerate(gpus))
        return f"Default\n{head}{rows}" + "".join(f"\nServer {pid}\n{head}{rows}" for pid in self.servers())

    def _do_terminate_client(self, words: list[str]) -> str:
        unknown = self._unknown(words)
        if unknown:
            return f"{unknown}{unknown.rstrip()}!\n1\n"
        client = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if client not in self.clients():
            return "201\n"
        if self._sim.marked("no-terminate", self._gpu):
            return "1\n"
        self._joined.end(client, CLIENT_TERMINATED)
        self._joined.hurt(self.clients())
        return "0\n"

    def _do_get_device_client_list(self, words: list[str]) -> str:
        unknown = "" if integer(" ".join(words)) is None else self._unknown(words)
        names = [gpu.name for gpu in self._sim.machine.gpus if self._gpu in {"", gpu.uuid}]
        clients = "".join(f"{pid}.1\n" for pid in self.clients())
        return unknown or (f"[0] 00:00.0, {names[0]}\n{clients}" if names and clients else "")

    def _do_get_default_active_thread_percentage(self, _: list[str]) -> str:
        return f"{self._percentage}\n"

    def _do_set_default_active_thread_percentage(self, words: list[str]) -> str:
        self._percentage = percentage(" ".join(words), self._percentage)
        return f"{self._percentage}\n"

    def _do_get_default_client_priority(self, _: list[str]) -> str:
        return f"{self._priority}\n"

    def _do_set_default_client_priority(self, words: list[str]) -> str:
        priority = integer(" ".join(words)) or 0
        if priority not in {0, 1}:
            return "Invalid priority value - must be 0 or 1!\n"
        self._priority = str(priority)
        return ""

    def _do_set_default_device_pinned_mem_limit(self, words: list[str]) -> str:
        device, mib = device_and_limit(" ".join(words))
        if 0 <= device < DEVICES:
            self._limits[str(device)] = mib
        return ""

    def _do_get_default_device_pinned_mem_limit(self, words: list[str]) -> str:
        return shown(self._limits.get(str(integer(" ".join(words)) or 0), 0))

    def _do_set_device_pinned_mem_limit(self, words: list[str]) -> str:
        unknown = self._unknown(words)
        if not unknown and len(words) > 1:
            self._joined.limits(int(words[0]))[words[1]] = memory("".join(words[2:3]))
        return unknown

    def _do_get_device_pinned_mem_limit(self, words: list[str]) -> str:
        return self._unknown(words) or shown(self._joined.limits(int(words[0])).get("".join(words[1:2]), 0))

    def _do_get_active_thread_percentage(self, words: list[str]) -> str:
        return self._unknown(words) or f"{self._joined.percentage(int(words[0]))}\n"

    def _do_set_active_thread_percentage(self, words: list[str]) -> str:
        return self._unknown(words) or f"{self._joined.percentage(int(words[0]), ' '.join(words[1:]))}\n"

    def _unknown(self, words: list[str]) -> str:
        """What is said of a server that is not there; nothing where it is."""
        pid = integer(" ".join(words)) or 0
        return "" if pid in self.servers() else f"Server {pid} not found\n"


def serve(daemon: Daemon, listener: socket.socket) -> None:
    """Answer connection after connection until told to quit."""
    while not daemon.quits:
        with listener.accept()[0] as connection, suppress(ConnectionError):
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            for packet in iter(lambda: connection.recv(65536), b""):
                line = packet.rstrip(END).decode(errors="replace")
                if line == JOIN:
                    with daemon.lock:
                        reply = daemon.join(pid, uid)
                    entry = f"NEW CLIENT {pid} from user {uid}: {reply.rstrip()}"
                else:
                    with daemon.lock:
                        reply, entry = daemon.answer(line, uid), f"Cmd:{line}"
                print(f"[Control {os.getpid()}] {entry}", file=sys.stderr, flush=True)
                connection.send(reply.encode() + END)
                if daemon.quits:
                    break
    daemon.end()


def main(*arguments: str) -> int:
    """Be the daemon (``-d``, ``-f``, perhaps for several users). It ignores other words, as 535 does."""
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    sim = Sim.from_environment()
    supported = current(sim)["multiuser_supported"] != "0"
    several = MULTIUSER in arguments or (WHERE_SUPPORTED in arguments and supported)
    form = next((each for each in arguments if each not in {MULTIUSER, WHERE_SUPPORTED}), "")
    if len(pipe) > MAX_PIPE or form not in {"-d", "-f"} or (several and not supported):
        return 1
    return start(sim, pipe, form, multiuser=several)


def start(sim: Sim, pipe: str, form: str, *, multiuser: bool) -> int:
    """Take the directory, or say that somebody has it."""
    Path(pipe).mkdir(exist_ok=True)
    lock = Path(pipe, "control_lock").open("a")  # noqa: SIM115 - held for life
    os.fchmod(lock.fileno(), 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    listener, privileged = _socket(pipe, "control", 0o666), _socket(pipe, PRIVILEGED, 0o755)
    listener.listen(16)
    Path(pipe, FIFO).unlink(missing_ok=True)
    os.mkfifo(Path(pipe, FIFO))
    Path(pipe, FIFO).chmod(0o777)
    if form == "-d" and _behind(pipe):
        return 0
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    daemon = Daemon(sim, gpu, multiuser=multiuser)
    if gpu:
        Tenants(sim, gpu, "mps", daemon.admit, daemon.lock).listen(Path(pipe))
        threading.Thread(target=_exit_when_marked, args=(sim, gpu), daemon=True).start()
    with privileged:
        serve(daemon, listener)
    Path(pipe, FIFO).unlink(missing_ok=True)
    return 0


def _socket(pipe: str, name: str, mode: int) -> socket.socket:
    """A socket in place of whatever a daemon before left there."""
    Path(pipe, name).unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"{pipe}/{name}")
    Path(pipe, name).chmod(mode)
    return made


def _exit_when_marked(sim: Sim, gpu: str) -> None:
    while not sim.marked("no-mps", gpu):
        time.sleep(0.2)
    print(f"[Control {os.getpid()}] no MPS daemon lives on {gpu}", file=sys.stderr, flush=True)
    os._exit(1)


def _behind(pipe: str) -> bool:
    """Go on in a child with a session and a log of its own; true in the parent, which may leave."""
    if os.fork():
        return True
    os.setsid()
    log = os.open(
        Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", pipe), "control.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in enumerate((null, log, log)):
        os.dup2(target, descriptor)
    return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
