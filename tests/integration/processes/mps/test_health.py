"""Looks at a daemon: tampering found and put right, a fault that waits for its clients, what cannot be said."""

from pathlib import Path
from typing import Any

import pytest

from enforcer.mps.incidents import IncidentLog
from enforcer.mps.protocol import ServerStatus
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.fakes.gpu.mps_clients import LAUNCH_FAILED
from tests.fakes.gpu.state import MpsFault, Sim
from tests.integration.processes.mps.conftest import LIMIT, Make, daemons_of

pytestmark = pytest.mark.node


@pytest.mark.parametrize(
    "tampering",
    [
        "set_default_device_pinned_mem_limit 0 700M",
        "set_default_device_pinned_mem_limit 0 14G",
        "set_default_device_pinned_mem_limit 0 0G",
        "set_default_active_thread_percentage 1",
    ],
)
def test_a_default_that_a_tenant_changed_is_found_at_the_next_look(binary: Path, make: Make, tampering: str) -> None:
    incidents = IncidentLog()
    daemon = make(binary, incidents=incidents)
    daemon.start()
    daemon.health()
    assert incidents.counts == {}
    daemon.control.ask(tampering)
    daemon.health()
    assert incidents.counts == {(daemon.gpu, Reason.MPS_TAMPERED): 1}
    daemon.client.check_limit(LIMIT)
    assert daemon.client.percentage() == 100.0


def fault(daemon: Any) -> MpsError:
    with pytest.raises(MpsError) as caught:
        daemon.health()
    assert caught.value.reason is Reason.MPS_FAULT
    return caught.value


def test_after_a_fault_lingering_clients_are_let_go_of_and_live(
    stand_in: Path, make: Make, sim: Sim, tenant: Any
) -> None:
    """From documentation: no GPU fault has been seen here."""
    incidents = IncidentLog()
    daemon = make(stand_in, incidents=incidents)
    daemon.start()
    clients = [tenant() for _ in range(3)]
    for client in clients:
        sim.strike(client.pid, daemon.gpu, LAUNCH_FAILED, fault=True)
    assert "(3 left)" in fault(daemon).message
    assert sim.processes().keys() == {*(each.pid for each in clients), *daemon.servers()}
    fault(daemon)
    assert sim.processes().keys() == {*daemon.servers()}, "let go of at the second look"
    assert [client.poll() for client in clients] == [None] * 3, "and not ended"
    for client in clients:
        client.kill()
        client.wait()
    assert set(daemon.health().values()) <= {ServerStatus.ACTIVE}
    assert incidents.counts[daemon.gpu, Reason.RECOVERED] == 1


@pytest.mark.parametrize("answer", ["", "what?\n", "1000.0\n"])
def test_a_daemon_that_lives_is_not_ended_because_its_answer_means_nothing(
    stand_in: Path, make: Make, sim: Sim, answer: str
) -> None:
    daemon = make(stand_in)
    daemon.start()
    before = daemons_of(daemon.directory)
    sim.fail_mps(MpsFault(command="get_default_active_thread_percentage", answer=answer))
    with pytest.raises(MpsError, match="instead of a thread percentage"):
        daemon.start()
    assert daemons_of(daemon.directory) == before
    sim.fail_mps()


def test_a_control_program_that_is_gone_is_no_reason_to_end_what_runs(stand_in: Path, make: Make) -> None:
    daemon = make(stand_in)
    daemon.start()
    before = daemons_of(daemon.directory)
    away = stand_in.rename(stand_in.with_name("away"))
    for ask in (daemon.answers, daemon.health, daemon.start):
        with pytest.raises(MpsError, match="cannot run"):
            ask()
    assert daemons_of(daemon.directory) == before
    away.rename(stand_in)
    daemon.start()
    assert daemons_of(daemon.directory) == before
