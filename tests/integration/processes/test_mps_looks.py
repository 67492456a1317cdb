"""A running enforcer supervises its MPS daemon: killed, stopped, changed by other users, blocked by silent ones."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import folder_of
from gpushare.errors import MpsError
from tests.fakes.gpu import mps_control, world
from tests.integration.processes.containers import alive, wait_for
from tests.integration.processes.enforcing import Node

pytestmark = pytest.mark.node
SAY = """
import os, socket, sys
if len(sys.argv) > 3:
    os.setuid(int(sys.argv[3]))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
    door.connect(sys.argv[1])
    door.send(sys.argv[2].encode() + bytes(1))
    print(door.recv(65536).rstrip(bytes(1)).decode().strip())
"""
NOBODY = "65534"
LIMIT = "get_default_device_pinned_mem_limit 0"
DELAY = 20.0


class Place:
    """An enforcer with a daemon, and who talks to that."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.door = folder / "pipe" / "control"

    def pid(self) -> int:
        with suppress(FileNotFoundError):
            return int(json.loads((self.folder / "daemon.json").read_text())["pid"] or 0)
        return 0

    def say(self, word: str, *user: str) -> str:
        command = [sys.executable, "-c", SAY, str(self.door), word, *user]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        return done.stdout.strip()


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[Place]:
    run = Path(tempfile.mkdtemp(prefix="mps"))  # not pytest's own folder: its paths are too long for sockets
    run.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, run)
        node = Node(tmp_path, stack)
        program = mps_control.install(run, node.sim.folder)
        place = Place(node, run / "mps" / folder_of(node.gpu))
        stack.callback(_stop, MpsDaemon(node.gpu, place.folder, program, limit_mib=1))
        stack.callback(node.end)
        node.start("--mps-check-seconds", "1", run=run, path=run)
        wait_for(lambda: place.say(LIMIT) == "15G", 20)
        wait_for(lambda: "MPS control daemon serves" in node.log(), 20)
        yield place


def _stop(daemon: MpsDaemon) -> None:
    with suppress(MpsError):
        daemon.stop()


def test_a_killed_daemon_is_started_again(place: Place) -> None:
    old = place.pid()
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: place.pid() not in {0, old}, 20)
    wait_for(lambda: place.say("get_default_active_thread_percentage") == "100.0", 20)


def test_a_stopped_daemon_is_set_going_and_reported(place: Place) -> None:
    pid = place.pid()
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "was stopped by another process (SIGSTOP); the enforcer sent SIGCONT" in place.node.log(), 20)
    assert place.say("get_default_active_thread_percentage") == "100.0"
    assert place.pid() == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
@pytest.mark.parametrize(
    ("word", "ask"),
    [
        ("set_default_device_pinned_mem_limit 0 700M", LIMIT),
        ("set_default_active_thread_percentage 7", "get_default_active_thread_percentage"),
    ],
)
def test_what_another_user_changes_is_put_right_and_reported(place: Place, word: str, ask: str) -> None:
    """Before driver 580; since then only root may."""
    world.change(place.node.sim, foreign_uid_may_set=1)
    before = place.say(ask)

    def told() -> bool:
        place.say(word, NOBODY)  # again: one that falls between a look's question and its answer is put right unseen
        return "; the enforcer restored its own setting" in place.node.log()

    wait_for(told, 20)
    wait_for(lambda: place.say(ask) == before, 20)


def test_a_silent_connection_does_not_keep_a_container_over_its_quota_alive(place: Place) -> None:
    node, pid = place.node, place.pid()
    container = node.container()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(place.door))
        tenant = container.tenant(node.sim, "--mib", "9000", "--kind", "mps")
        node.allow(container.quota(node.gpu, 4096))
        wait_for(lambda: not alive(tenant), DELAY + 10)
        wait_for(lambda: bool(node.records("OUTCOME")), 10)
    # On a machine with too much to do even three attempts may not be enough; signals do then.
    assert node.records("OUTCOME")[0]["targets"][0]["steps"].split(",")[0] in {"terminate_client", "MpsControlBlocked"}
    assert "MpsControlBlocked" in node.log()
    assert place.pid() == pid


def test_an_enforcer_that_is_started_again_touches_no_daemon(place: Place) -> None:
    pid = place.pid()
    place.node.stop()
    assert Path(f"/proc/{pid}").exists()
    place.node.start("--mps-check-seconds", "1", run=place.folder.parents[1], path=place.folder.parents[1])
    place.say("set_default_active_thread_percentage 7")
    wait_for(lambda: place.say("get_default_active_thread_percentage") == "100.0", 20)  # the new one looks after it
    assert place.pid() == pid
