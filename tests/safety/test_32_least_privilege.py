"""The capabilities that are shipped are enough for all that is done with them, and none of them is too many.

Each is taken away in turn, and the test that then fails is named. What only NVIDIA's driver could refuse is not
provable on a machine without a GPU, and said to be so.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.runtime import capabilities as rights
from enforcer.runtime.capabilities import Capability
from tests.integration.processes.containers import PROJECT
from tests.integration.processes.test_capabilities import LOOK, NOBODY, SAID, done_with, granted
from tests.safety.test_27_one_enforcer import Node
from tests.support import extent
from tests.support.need import missing
from tests.support.patience import holds_within

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

DAEMON: Final = """
import socket, sys
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1])
door.listen()
silent = socket.socket(socket.AF_UNIX)
silent.connect(sys.argv[1])
served, _ = door.accept()
print("served", flush=True)
served.recv(1)
"""
DOOR: Final = """
import sys
from enforcer.mps.control_socket import ControlSocket
from enforcer.mps.incidents import IncidentLog
sys.exit(not ControlSocket("GPU-1", IncidentLog()).idle_connections(int(sys.argv[1]), 0))
"""
NOT_PROVABLE: Final = {
    Capability.SYS_ADMIN: "not provable here: NVIDIA's driver alone asks for it, to set a compute mode"
}


def under(capabilities: set[str]) -> list[str]:
    """Run what follows as root with these alone."""
    bounds = ",".join(["-all", *(f"+{each}" for each in sorted(capabilities))])
    return ["setpriv", "--inh-caps=-all", f"--bounding-set={bounds}"]


@pytest.fixture(autouse=True)
def _needs() -> None:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        missing("this needs root and setpriv (util-linux)")


@contextmanager
def process(*command: str, ready: str = "") -> Iterator[int]:
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout
            assert not ready or started.stdout.readline() == f"{ready}\n"
            yield started.pid
        finally:
            started.kill()


def ended(folder: Path, *more: str, capabilities: set[str] | None = None) -> tuple[dict[str, Any], set[int]]:
    """Have a whole enforcer end a tenant of another user. Returns the OUTCOME, and the capabilities it had."""
    with ExitStack() as stack:
        node = Node(folder, stack, *more, under=[] if capabilities is None else under(capabilities))
        node.tenant("setpriv", f"--reuid={NOBODY}", "--clear-groups")
        node.start(1)
        had = set(rights.effective(Path(f"/proc/{node.at_work(0)}/status")))
        assert holds_within(lambda: any(each["kind"] == "OUTCOME" for each in node.records()), 60), node.log.read_text()
        return next(each for each in node.records() if each["kind"] == "OUTCOME"), had


def a_process_of_another_user_is_ended(capabilities: set[str], folder: Path) -> bool:
    outcome, _ = ended(folder, capabilities=capabilities)
    return bool(outcome["result"] == "Killed")


def the_limit_a_process_was_started_with_is_read(capabilities: set[str], _: Path) -> bool:
    with process("setpriv", f"--reuid={NOBODY}", "--clear-groups", "sleep", "60") as stranger:
        return done_with(capabilities, SAID, stranger)


def a_silent_connection_to_a_daemon_is_found(capabilities: set[str], _: Path) -> bool:
    with (
        tempfile.TemporaryDirectory(prefix="gs-") as folder,
        process(sys.executable, "-c", DAEMON, f"{folder}/control", ready="served") as daemon,
    ):
        return holds_within(lambda: done_with(capabilities, DOOR, daemon), 1)


NEEDED_FOR: Final[dict[Capability, list[Callable[[set[str], Path], bool]]]] = {
    Capability.KILL: [a_process_of_another_user_is_ended],
    Capability.SYS_PTRACE: [the_limit_a_process_was_started_with_is_read, a_silent_connection_to_a_daemon_is_found],
}
EVERY: Final = [each for checks in NEEDED_FOR.values() for each in checks]


def names(found: set[int]) -> set[str]:
    return {Capability(number).name for number in found}


def test_with_the_shipped_set_alone_everything_is_done(tmp_path: Path) -> None:
    with process("setpriv", f"--reuid={NOBODY}", "--clear-groups", "sleep", "60") as stranger:
        assert done_with(set(), LOOK, stranger), "whose a process is, is seen without any"
    for check in EVERY:
        (folder := tmp_path / check.__name__).mkdir()
        assert check(granted(), folder), check.__name__
    extent.figure("32", "done with the shipped set alone", ", ".join(spoken(check) for check in EVERY))


@pytest.mark.parametrize("right", NEEDED_FOR, ids=lambda right: right.name)
def test_without_one_of_them_a_test_fails(right: Capability, tmp_path: Path) -> None:
    left = granted() - {right.name.lower()}
    checks = EVERY if extent.full() else NEEDED_FOR[right]
    failing = [check for check in checks if not check(left, Path(tempfile.mkdtemp(dir=tmp_path)))]
    assert failing == NEEDED_FOR[right]
    extent.figure("32", f"fails without {right.name}", ", ".join(spoken(check) for check in failing))


def test_an_enforcer_with_every_right_gives_up_all_but_those_and_works(tmp_path: Path) -> None:
    outcome, had = ended(tmp_path, "--drop-capabilities")
    assert outcome["result"] == "Killed"
    assert names(had) == {right.name for right in rights.ALWAYS}
    assert had < rights.effective(), "it had more to begin with"
    assert {right.name.lower() for right in NEEDED_FOR} == granted()
    assert set(rights.ALWAYS) - {Capability[each.upper()] for each in granted()} == NOT_PROVABLE.keys()
    extent.figure("32", "kept by a privileged enforcer that ended a tenant", ", ".join(sorted(names(had))))
    for right, why in NOT_PROVABLE.items():
        extent.figure("32", f"fails without {right.name}", why)


def spoken(check: Callable[..., bool]) -> str:
    return check.__name__.replace("_", " ")
