"""How a daemon is started: for all users where its program can, with files enough, and its server before any client."""

import resource
from pathlib import Path

import pytest

from enforcer.mps import launcher
from enforcer.mps.daemon import MpsDaemon
from tests.fakes.gpu import world
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Sim
from tests.integration.processes.mps.conftest import Make

pytestmark = pytest.mark.node


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_it_serves_clients_of_all_users(stand_in: Path, make: Make) -> None:
    daemon = make(stand_in)
    daemon.start()
    (pid,) = daemon.pids()
    assert "-multiuser-server" in command_line(pid)


def test_a_program_that_cannot_serves_one_user_at_a_time_and_that_is_reported(
    stand_in: Path, make: Make, sim: Sim, capsys: pytest.CaptureFixture[str]
) -> None:
    world.change(sim, multiuser_supported=0)
    daemon = make(stand_in)
    daemon.start()
    (pid,) = daemon.pids()
    assert "-multiuser-server" not in command_line(pid)
    assert "one user's processes at a time" in capsys.readouterr().out


def test_it_may_open_as_many_files_as_a_server_needs(binary: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 16384:
        pytest.skip(f"this process may not open more than {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        daemon = make(binary)
        daemon.start()
        (pid,) = daemon.pids()
        (line,) = [row for row in Path(f"/proc/{pid}/limits").read_text().splitlines() if row.startswith("Max open")]
        assert int(line.split()[3]) == min(launcher.FILES, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_on_a_node_the_server_is_there_before_the_first_client(stand_in: Path, root: Path, sim: Sim) -> None:
    reader = SimReader(sim)
    daemon = MpsDaemon(sim.machine.gpus[0].uuid, root / "daemon", stand_in, limit_mib=1024, modes=reader, server_uid=0)
    try:
        daemon.start()
        assert len(daemon.servers()) == 1
    finally:
        daemon.stop()
