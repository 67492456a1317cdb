"""Silent connections to the control socket are shut out, and nobody is hurt by that."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.mps import control_socket as doors
from enforcer.mps.control_program import Deadline
from enforcer.mps.control_socket import ControlSocket
from enforcer.mps.incidents import IncidentLog
from enforcer.mps.watchdog import DaemonWatchdog, StallProbe
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.integration.processes.mps.conftest import Make
from tests.support.wiring import Attribution

pytestmark = pytest.mark.node

SILENT = """
import socket, sys
held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(int(sys.argv[2]))]
for each in held:
    each.connect(sys.argv[1])
    each.send(sys.argv[3].encode()) if sys.argv[3] else None
print("ready", flush=True)
for each in held:
    while each.recv(4096):
        pass
print("shut out", flush=True)
sys.stdin.read()
"""
HANDED_ON = """
import os, socket, sys
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    held.connect(sys.argv[1])
    socket.send_fds(theirs, [b"x"], [held.fileno()])
    os._exit(0)
held = socket.recv_fds(ours, 1, 1)[1]
os.waitpid(child, 0)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def program(text: str, *arguments: str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    command = [*before, sys.executable, "-c", text, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("word", ["", "x", "get_server_list"], ids=["silent", "a byte", "a command"])
def test_a_connection_that_says_nothing_is_shut_and_its_maker_lives(binary: Path, make: Make, word: str) -> None:
    daemon = make(binary)
    daemon.start()
    with program(SILENT, str(daemon.pipe / "control"), "1", word) as holder:
        assert daemon.client.percentage(Deadline(5)) == 100.0
        assert said(holder) == "shut out\n"
        assert holder.poll() is None
    assert daemon.answers()


def test_one_from_another_network_namespace_is_found_as_well(binary: Path, make: Make) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    daemon = make(binary)
    daemon.start()
    with program(SILENT, str(daemon.pipe / "control"), "1", "", before=("unshare", "--net")):
        assert daemon.client.percentage(Deadline(5)) == 100.0


def test_one_whose_maker_is_gone_needs_nobody_to_be_ended(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    (pid,) = daemon.pids()
    with program(HANDED_ON, str(daemon.pipe / "control")) as holder:
        assert daemon.client.percentage(Deadline(5)) == 100.0
        assert holder.poll() is None
    assert daemon.pids() == {pid}, "the daemon is the same"


def test_a_dozen_in_a_row_cost_no_more_than_the_deadline(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    with program(SILENT, str(daemon.pipe / "control"), "12", ""):
        assert daemon.client.percentage(Deadline(10)) == 100.0


def test_where_it_cannot_be_looked_the_daemon_stays_blocked_and_alive(
    binary: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.mps.control_socket.READS", {})
    daemon = make(binary)
    daemon.start()
    (pid,) = daemon.pids()
    with program(SILENT, str(daemon.pipe / "control"), "1", ""):
        with pytest.raises(MpsError) as caught:
            daemon.client.percentage(Deadline(2))
        assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED
        assert Path(f"/proc/{pid}").exists()
    assert daemon.pids() == {pid}


def whose(pid: int) -> Identity | None:
    return Identity(pid=pid, start=1, owner=ContainerRef("pod-uid", "container-id"))


def test_operators_are_notified_whose_it_was(binary: Path, make: Make, capsys: Any) -> None:
    daemon = make(binary)
    daemon.start()
    incidents = IncidentLog()
    watched = DaemonWatchdog("GPU-x", daemon.pipe, daemon._notes, incidents)
    watched.door._attributor = Attribution(whose)
    vigil = StallProbe(watched)
    with program(SILENT, str(daemon.pipe / "control"), "1", "") as holder:
        while not incidents.counts:
            vigil.observe(0)
            time.sleep(0.02)
        assert said(holder) == "shut out\n"
    assert incidents.counts == {("GPU-x", Reason.MPS_CONTROL_BLOCKED): 1}
    (told,) = incidents.pending()
    line = next(line for line in capsys.readouterr().out.splitlines() if f"pid={holder.pid}" in line)
    words = (f"pid={holder.pid}", f"uid={os.getuid()}", "pod_uid=pod-uid", "container_id=container-id")
    assert all(word in line for word in words)
    assert not any(word in told.note for word in words), "the node's Event names nobody"


def test_what_waits_for_us_is_never_shut(binary: Path, make: Make) -> None:
    daemon = make(binary)
    daemon.start()
    (pid,) = daemon.pids()
    door = ControlSocket("GPU-x", IncidentLog())
    with program(SILENT, str(daemon.pipe / "control"), "1", "") as holder:
        deadline = time.monotonic() + 5
        while not (standing := door.idle_connections(pid, 0)):
            assert time.monotonic() < deadline
        for connection in standing.values():
            connection.close()
        assert door.idle_connections(pid, holder.pid) == {}


DAEMON_WITH_A_SERVER = """
import os, socket, sys
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind(sys.argv[1] + "/control")
door.listen()
inside, outside = os.pipe()
if os.fork() == 0:
    os.close(outside)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(sys.argv[1] + "/control")
    os.read(inside, 1)
    os._exit(0)
connection, _ = door.accept()
print("ready", flush=True)
connection.recv(1)
"""


def test_the_connection_of_its_own_server_is_never_shut(root: Path) -> None:
    """A daemon reads from it while a server terminates a client that takes its time."""
    with program(DAEMON_WITH_A_SERVER, str(root)) as process:
        door = ControlSocket("GPU-x", IncidentLog())
        end = time.monotonic() + 5
        while not list(doors.waiting(process.pid, doors.READS)):
            assert time.monotonic() < end
        assert door.idle_connections(process.pid, 0) == {}


MUTE_DAEMON = """
import os, select, socket, sys
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind(sys.argv[1] + "/control")
door.listen()
other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
other.bind(sys.argv[1] + "/other")
other.listen()
print("ready", flush=True)
pending, _ = door.accept()
private, _ = other.accept()
print("accepted", flush=True)
private.recv(1) if sys.argv[2] == "private" else sys.stdin.read(1)
"""


@pytest.mark.parametrize("reads", ["private", "standard input"])
def test_a_client_that_is_not_read_from_is_no_holder(root: Path, reads: str) -> None:
    """Such as one that waits for its server, while the daemon serves others."""
    with (
        program(MUTE_DAEMON, str(root), reads) as process,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as private,
    ):
        waiting.connect(str(root / "control"))
        private.connect(str(root / "other"))
        assert said(process) == "accepted\n"
        door = ControlSocket("GPU-x", IncidentLog())
        end = time.monotonic() + 5
        while not list(doors.waiting(process.pid, doors.READS)):
            assert time.monotonic() < end
        assert door.idle_connections(process.pid, 0) == {}
