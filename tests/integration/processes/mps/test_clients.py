"""What is done to clients and servers, and that the stand-in, where these tests get them from, is honest."""

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.manager import MpsManager
from enforcer.mps.protocol import ServerStatus
from enforcer.nvml.types import ComputeMode
from gpushare.errors import MpsError, NvmlError
from gpushare.reasons import Reason
from tests.fakes.gpu.node import break_down
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault, MpsFault, Sim
from tests.integration.processes.mps.conftest import Make, daemons_of, until
from tests.support.debian import debian_sources

pytestmark = pytest.mark.node


def test_the_card_is_exclusive_while_the_daemon_runs(stand_in: Path, make: Make, sim: Sim) -> None:
    reader = SimReader(sim)
    daemon = make(stand_in, modes=reader)
    daemon.start()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.EXCLUSIVE_PROCESS
    sim.set_compute_mode(daemon.gpu, 0)
    daemon.health()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.EXCLUSIVE_PROCESS
    again = make(stand_in, modes=reader)
    again.start()
    again.stop()
    assert reader.compute_mode(daemon.gpu) is ComputeMode.DEFAULT


def test_a_mode_that_cannot_be_set_keeps_mps_from_starting(stand_in: Path, make: Make, sim: Sim) -> None:
    sim.fail(Fault(call="nvmlDeviceSetComputeMode", error=4))
    daemon = make(stand_in, modes=SimReader(sim))
    with pytest.raises(NvmlError, match="Permission"):
        daemon.start()
    assert daemons_of(daemon.directory) == []
    assert MpsManager({daemon.gpu: daemon}).start()[daemon.gpu].reason is Reason.NVML_DENIED


def test_the_server_is_started_early_and_watched(stand_in: Path, make: Make, sim: Sim) -> None:
    daemon = make(stand_in, server_uid=0)
    daemon.start()
    (server,) = daemon.servers()
    assert daemon.health() == {server: ServerStatus.ACTIVE}
    assert server in daemon.pids()
    sim.fail_mps(MpsFault(command="get_server_status", answer="FAULT\n"))
    with pytest.raises(MpsError, match="accepts no client"):
        daemon.health()
    assert daemon.client.status(server) is ServerStatus.FAULT
    sim.fail_mps(MpsFault(command="get_server_status", answer='Unknown command "get_server_status"\n'))
    assert daemon.health() == {server: None}


def test_without_a_gpu_the_real_server_fails_and_the_daemon_serves_all_the_same(real: Path, make: Make) -> None:
    daemon = make(real, server_uid=0)
    daemon.start()
    until(lambda: daemon.health() == {})


def test_a_client_is_terminated_and_its_neighbour_is_not(stand_in: Path, make: Make, sim: Sim, tenant: Any) -> None:
    daemon = make(stand_in)
    daemon.start()
    first, second, plain = tenant(), tenant(), tenant(kind="compute")
    assert daemon.terminate(first.pid) is True
    assert sorted(sim.processes()) == sorted([second.pid, plain.pid, *daemon.servers()])
    assert first.poll() is None, "MPS ends contexts, not processes"
    assert first.stdout.readline().startswith("CUDA error: MPS client terminated")
    assert daemon.terminate(first.pid) is None
    assert daemon.terminate(plain.pid) is None
    assert daemon.terminate(os.getpid()) is None


def test_only_the_daemon_of_its_gpu_knows_a_client(stand_in: Path, make: Make, uuids: list[str], tenant: Any) -> None:
    daemons = {uuid: make(stand_in, str(index)) for index, uuid in enumerate(uuids)}
    manager = MpsManager(daemons)
    assert manager.start() == {}
    there = tenant(gpu=1)
    assert daemons[uuids[0]].terminate(there.pid) is None
    assert manager.terminate(there.pid, uuids[0]) is None
    assert manager.terminate(there.pid) is True
    assert manager.terminate(there.pid, "GPU-unknown") is None
    assert set(manager.health()) == set(uuids)


@pytest.mark.parametrize(
    "fault",
    [
        MpsFault(command="terminate_client", answer="Server 1 not found\nServer 1 not found!\n1\n"),
        MpsFault(command="terminate_client", answer="700\n"),
        MpsFault(command="terminate_client", answer=""),
        MpsFault(command="get_server_list", answer="what?\n"),
        MpsFault(command="get_client_list", answer="Server 1 not found\n"),
    ],
    ids=["server gone", "CUDA error", "nothing", "garbage", "list gone"],
)
def test_a_client_that_may_still_be_there_counts_as_not_terminated(
    stand_in: Path, make: Make, sim: Sim, tenant: Any, fault: MpsFault
) -> None:
    daemon = make(stand_in)
    daemon.start()
    process = tenant()
    sim.fail_mps(fault)
    assert daemon.terminate(process.pid) is False
    sim.fail_mps()


def test_on_a_gpu_where_clients_cannot_be_terminated_one_stays_until_all_is_well(
    stand_in: Path, make: Make, sim: Sim, tenant: Any
) -> None:
    daemon = make(stand_in)
    daemon.start()
    process = tenant()
    break_down(sim, daemon.gpu, "no-terminate")
    assert daemon.terminate(process.pid) is False
    break_down(sim, daemon.gpu, "well")
    assert daemon.terminate(process.pid) is True


def test_a_daemon_that_hangs_while_it_terminates_costs_no_more_than_the_deadline(
    stand_in: Path, make: Make, sim: Sim, tenant: Any
) -> None:
    daemon = make(stand_in)
    daemon.start()
    process = tenant()
    sim.fail_mps(MpsFault(command="terminate_client", hang_ms=20_000))
    with pytest.raises(MpsError) as caught:
        daemon.terminate(process.pid, Deadline(3.0))
    assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED
    sim.fail_mps()


def test_where_mps_never_came_up_nobody_is_its_client(make: Make) -> None:
    daemon = make(Path("/nonexistent"))
    manager = MpsManager({daemon.gpu: daemon})
    assert list(manager.start()) == [daemon.gpu]
    assert manager.terminate(os.getpid()) is None


def test_a_daemon_that_is_blocked_at_the_start_may_still_have_clients(
    stand_in: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enforcer.mps.control_program.Deadline.__init__.__defaults__", (3.0,))
    monkeypatch.setattr("enforcer.mps.daemon.BLOCKED_SECONDS", 0.5)
    monkeypatch.setattr("enforcer.mps.control_socket.READS", {})
    make(stand_in).start()
    again = make(stand_in)
    manager = MpsManager({again.gpu: again})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(again.pipe / "control"))
        assert manager.start()[again.gpu].reason is Reason.MPS_CONTROL_BLOCKED
        with pytest.raises(MpsError) as caught:
            manager.terminate(os.getpid())
        assert caught.value.reason is Reason.MPS_CONTROL_BLOCKED
    assert manager.start() == {}
    assert manager.terminate(os.getpid()) is None


def test_a_node_gets_a_daemon_per_gpu_in_directories_of_their_own(
    stand_in: Path, root: Path, uuids: list[str], sim: Sim
) -> None:
    reader = SimReader(sim)
    daemons = {uuid: MpsDaemon(uuid, root / uuid, stand_in, limit_mib=14848, modes=reader) for uuid in uuids}
    manager = MpsManager(daemons)
    assert manager.start() == {}
    assert {uuid: daemon.pipe for uuid, daemon in manager.daemons.items()} == {
        uuid: root / uuid / "pipe" for uuid in uuids
    }
    assert all(reader.compute_mode(uuid) is ComputeMode.EXCLUSIVE_PROCESS for uuid in uuids)
    manager.stop()
    assert all(reader.compute_mode(uuid) is ComputeMode.DEFAULT for uuid in uuids)
    assert [daemons_of(root / uuid) for uuid in uuids] == [[], []]


def test_a_daemon_that_is_gone_terminates_nobody(stand_in: Path, make: Make) -> None:
    daemon = make(stand_in)
    daemon.start()
    daemon.stop()
    assert daemon.terminate(os.getpid()) is False


PERCENTAGE, LIMIT_0, PRIORITY = (
    "default_active_thread_percentage",
    "default_device_pinned_mem_limit",
    "default_client_priority",
)
SAME = [
    *("get_server_list", "ps", "bogus", "", "help me", f"get_{PERCENTAGE}"),
    *(
        f"set_{PERCENTAGE} 33.3",
        f"get_{PERCENTAGE}",
        f"set_{PERCENTAGE} 150",
        f"set_{PERCENTAGE} 0",
        f"set_{PERCENTAGE}",
    ),
    *(
        f"{verb}_{LIMIT_0} 0{value}"
        for mib in (512, 1023, 1536, 143771)
        for verb, value in (("set", f" {mib}M"), ("get", ""))
    ),
    *(f"set_{LIMIT_0} 0 10G", f"get_{LIMIT_0} 0", f"get_{LIMIT_0} 7", f"set_{LIMIT_0} 0 0G", f"get_{LIMIT_0} 0"),
    *(f"set_{LIMIT_0} 0 5M", f"set_{LIMIT_0} 0", f"get_{LIMIT_0} 0"),
    *(f"get_{PRIORITY}", f"set_{PRIORITY} 1", f"get_{PRIORITY}", f"set_{PRIORITY} 2"),
    *("get_client_list 1", "get_client_list", "terminate_client 1 2", "terminate_client x y", "terminate_client"),
    *("shutdown_server 5", "shutdown_server 5 -f", "get_device_client_list", "get_device_client_list 5"),
    *("get_device_pinned_mem_limit 4 0", "get_active_thread_percentage 4"),
]


def test_the_stand_in_answers_as_the_real_one_does(real: Path, stand_in: Path, make: Make) -> None:
    first, second = make(real, "0"), make(stand_in, "1")
    for daemon in first, second:
        daemon.start()
    told = [(command, first.control.ask(command), second.control.ask(command)) for command in SAME]
    assert [row for row in told if row[1] != row[2]] == []
    for daemon in first, second:
        daemon.stop()
        with pytest.raises(MpsError, match="Cannot find MPS control daemon process"):
            daemon.control.ask("get_server_list")


def test_debian_archives_are_found_in_either_format_and_others_left_alone() -> None:
    text = """deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib
# deb http://old.example/debian sid main
deb https://packages.example/apt x main
deb-src http://mirror.example/debian bookworm main

Types: deb
URIs: http://deb.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/a.gpg

Types: deb
URIs: https://deb.example/node_20.x
Components: main
"""
    assert list(debian_sources(text)) == [
        ("http://mirror.example/debian", "bookworm", "/k.gpg"),
        ("http://deb.example/debian", "bookworm bookworm-updates", "/usr/share/keyrings/a.gpg"),
    ]


def test_a_client_that_ends_while_we_wait_for_our_turn_is_not_named_to_the_daemon(
    stand_in: Path, make: Make, sim: Sim, tenant: Any
) -> None:
    """Its pid may be another client's by then."""
    daemon = make(stand_in)
    daemon.start()
    process = tenant()
    asked: list[bool] = []

    def ended() -> bool:
        if not asked:
            process.kill()
            process.wait()
        asked.append(True)
        return True

    (server,) = daemon.servers()
    with pytest.raises(MpsError) as caught:
        daemon.client.terminate(server, process.pid, None, ended)
    assert caught.value.reason is Reason.ALREADY_EXITED
    assert "terminate_client" not in (daemon.log / "control.log").read_text()
    assert daemon.terminate(process.pid) is None


def test_a_command_that_is_moot_while_it_waits_is_given_up(stand_in: Path, make: Make, sim: Sim) -> None:
    daemon = make(stand_in)
    daemon.start()
    sim.fail_mps(MpsFault(command="get_server_list", hang_ms=9000))
    answers = iter([False, False, True])
    begun = time.monotonic()
    with pytest.raises(MpsError) as caught:
        daemon.control.ask("get_server_list", None, lambda: next(answers))
    assert (caught.value.reason, time.monotonic() - begun < 8) == (Reason.ALREADY_EXITED, True)
    sim.fail_mps()


def test_a_client_that_was_let_go_of_without_an_answer_in_time_counts_as_terminated(
    stand_in: Path, make: Make, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = make(stand_in)
    daemon.start()
    process = tenant()
    tries = iter([MpsError("blocked", Reason.MPS_CONTROL_BLOCKED)])
    real = daemon.client.terminate

    def unheard(*arguments: Any) -> str | None:
        answer = real(*arguments)
        for error in tries:
            raise error
        return answer

    monkeypatch.setattr(daemon.client, "terminate", unheard)
    assert daemon.terminate(process.pid) is True
    assert process.poll() is None
