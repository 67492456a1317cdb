"""What NVIDIA documents and only a machine with a GPU could show: servers, clients, faults. Only the stand-in is asked.

So nothing here holds for the real program until it has been run on one; each test's id says where it comes from.
"""

from pathlib import Path
from typing import Any

import pytest

from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.protocol import ServerStatus
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.fakes.gpu.state import MpsFault, Sim
from tests.integration.processes.mps.conftest import LIMIT, Make

pytestmark = pytest.mark.node


@pytest.fixture(name="daemon", params=["from documentation"])
def _daemon(stand_in: Path, make: Make) -> MpsDaemon:
    daemon = make(stand_in, server_uid=0)
    daemon.start()
    return daemon


def say(daemon: MpsDaemon, line: str) -> str:
    return daemon.control.ask(line)


def test_a_server_is_listed_by_its_pid_and_a_second_start_adds_none(daemon: MpsDaemon) -> None:
    (server,) = daemon.client.servers()
    assert say(daemon, "start_server -uid 0") == ""
    assert say(daemon, "get_server_list") == f"{server}\n"
    assert (daemon.client.clients(server), daemon.client.status(server)) == ((), ServerStatus.ACTIVE)


@pytest.mark.parametrize("status", list(ServerStatus))
def test_a_server_says_how_it_is_in_one_of_three_words(daemon: MpsDaemon, sim: Sim, status: ServerStatus) -> None:
    (server,) = daemon.client.servers()
    sim.fail_mps(MpsFault(command="get_server_status", answer=f"{status.value}\n"))
    assert daemon.client.status(server) is status


def test_clients_are_listed_by_pid_and_by_ps_with_server_and_device(
    daemon: MpsDaemon, tenant: Any, uuids: list[str]
) -> None:
    (server,) = daemon.client.servers()
    pids = sorted(tenant().pid for _ in range(2))
    assert sorted(daemon.client.clients(server)) == pids
    title, *rows = [line.split(maxsplit=5) for line in say(daemon, "ps").splitlines()]
    assert title == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
    assert sorted((int(row[0]), int(row[2])) for row in rows) == [(pid, server) for pid in pids]
    assert all(uuids[0].startswith(row[3]) for row in rows)
    assert say(daemon, f"ps -p {server}") == say(daemon, "ps")


def test_terminating_a_client_prints_0_last_and_an_unknown_one_an_error(daemon: MpsDaemon, tenant: Any) -> None:
    (server,) = daemon.client.servers()
    process = tenant()
    assert say(daemon, f"terminate_client {server} {process.pid}").splitlines()[-1] == "0"
    assert daemon.client.clients(server) == ()
    assert say(daemon, f"terminate_client {server} {process.pid}").splitlines()[-1] != "0"
    assert process.poll() is None


@pytest.mark.parametrize("answer", ["0\n700\n", "00\n", "0.\n", "10\n", "ok\n", "", "\n"])
def test_any_last_line_but_0_is_an_error(daemon: MpsDaemon, sim: Sim, answer: str) -> None:
    sim.fail_mps(MpsFault(command="terminate_client", answer=answer))
    assert daemon.client.terminate(1, 2) == answer


def test_a_server_has_settings_of_its_own_that_begin_as_the_defaults(daemon: MpsDaemon) -> None:
    (server,) = daemon.client.servers()
    own, default = "device_pinned_mem_limit", "default_device_pinned_mem_limit"
    assert say(daemon, f"get_{own} {server} 0") == f"{LIMIT // 1024}G\n"
    say(daemon, f"set_{default} 0 700M")
    assert say(daemon, f"get_{own} {server} 0") == f"{LIMIT // 1024}G\n", "defaults reach the next server only"
    say(daemon, f"set_{own} {server} 0 20G")
    assert (say(daemon, f"get_{own} {server} 0"), say(daemon, f"get_{default} 0")) == ("20G\n", "700M\n")


def test_a_server_has_a_percentage_of_its_own(daemon: MpsDaemon) -> None:
    (server,) = daemon.client.servers()
    assert say(daemon, f"get_active_thread_percentage {server}") == "100.0\n"
    assert say(daemon, f"set_active_thread_percentage {server} 25") == "25.0\n"
    assert say(daemon, f"set_active_thread_percentage {server} 150") == "25.0\n"
    assert say(daemon, "get_default_active_thread_percentage") == "100.0\n"


@pytest.mark.parametrize("force", ["", " -f"], ids=["asked", "forced"])
def test_a_server_without_clients_ends_when_it_is_notified_to(daemon: MpsDaemon, force: str) -> None:
    (server,) = daemon.client.servers()
    assert say(daemon, f"shutdown_server {server}{force}") == ""
    assert say(daemon, "get_server_list") == ""


def test_a_server_that_is_asked_to_end_waits_for_its_clients(daemon: MpsDaemon, tenant: Any) -> None:
    (server,) = daemon.client.servers()
    tenant()
    say(daemon, f"shutdown_server {server}")
    assert daemon.client.servers() == (server,)
    say(daemon, f"shutdown_server {server} -f")
    assert server not in daemon.client.servers()


def test_a_daemon_that_hangs_costs_no_more_than_the_deadline(daemon: MpsDaemon, sim: Sim) -> None:
    sim.fail_mps(MpsFault(command="get_server_list", hang_ms=3_000))
    with pytest.raises(MpsError) as caught:
        daemon.client.servers(Deadline(0.5))
    assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED


@pytest.mark.parametrize("lie", ["Server 1 not found\n", "12x\n", "-5\n", "0\n", "1 2 three\n", "1.0\n"])
def test_a_list_with_anything_but_pids_is_believed_in_no_part(daemon: MpsDaemon, sim: Sim, lie: str) -> None:
    (server,) = daemon.client.servers()
    sim.fail_mps(MpsFault(command="get_client_list", answer=lie))
    with pytest.raises(MpsError, match="instead of a list of process ids"):
        daemon.client.clients(server)
