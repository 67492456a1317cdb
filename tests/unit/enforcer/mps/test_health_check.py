"""What one look at an MPS daemon puts right, reports and refuses to act upon."""

import pytest

from enforcer.mps import health_check, incidents
from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon_commands import DaemonCommands
from enforcer.mps.health_check import HealthCheck
from enforcer.mps.incidents import Incident, IncidentLog
from enforcer.mps.protocol import ServerStatus, whole_gib
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU

SERVER = 77


class Scripted(DaemonCommands):
    """A daemon as ``Client`` sees it."""

    def __init__(self) -> None:
        self.limit, self.share = 4096, 100.0
        self.states: dict[int, ServerStatus | None] = {SERVER: ServerStatus.ACTIVE}
        self.pids: tuple[int, ...] = (501, 502, 503)
        self.let_go: list[int] = []

    def percentage(self, deadline: Deadline | None = None) -> float:
        return self.share

    def set_percentage(self, percent: float, deadline: Deadline | None = None) -> None:
        self.share = percent

    def check_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        if mib != self.limit:
            raise MpsError("another limit", Reason.MPS_LIMIT_NOT_APPLIED)

    def set_limit(self, mib: int, deadline: Deadline | None = None) -> None:
        self.limit = mib

    def servers(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        return tuple(self.states)

    def status(self, server: int, deadline: Deadline | None = None) -> ServerStatus | None:
        return self.states[server]

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        return self.pids

    def start_server(self, uid: int, deadline: Deadline | None = None) -> None:
        raise AssertionError("a look starts nothing")

    def terminate(
        self, server: int, pid: int, deadline: Deadline | None = None, ended: object | None = None
    ) -> str | None:
        self.let_go.append(pid)
        return None

    def quit(self, deadline: Deadline | None = None) -> None:
        raise AssertionError("a look ends nothing")


class World:
    def __init__(self) -> None:
        self.client, self.incidents = Scripted(), IncidentLog()
        self.checkup = HealthCheck(GPU, self.client, 4096, self.incidents)

    def look(self) -> object:
        return self.checkup.run(Deadline())

    def faulty(self) -> MpsError:
        with pytest.raises(MpsError) as caught:
            self.look()
        assert caught.value.reason is Reason.MPS_FAULT
        return caught.value


@pytest.fixture(name="world")
def _world() -> World:
    return World()


def test_a_daemon_that_is_well_is_left_alone(world: World) -> None:
    assert world.look() == {SERVER: ServerStatus.ACTIVE}
    assert (world.client.let_go, world.incidents.counts) == ([], {})


@pytest.mark.parametrize(
    ("changed", "value", "named"),
    [
        ("limit", 700, "the memory limit"),
        ("limit", 5120, "the memory limit"),
        ("share", 1.0, "the thread percentage"),
    ],
)
def test_what_a_tenant_changed_is_put_right_and_reported(world: World, changed: str, value: float, named: str) -> None:
    setattr(world.client, changed, value)
    world.look()
    assert (world.client.limit, world.client.share) == (4096, 100.0)
    (told,) = world.incidents.pending()
    assert (told.reason, f"a process changed {named} of" in told.note) == (Reason.MPS_TAMPERED, True)
    world.look()
    assert world.incidents.counts == {(GPU, Reason.MPS_TAMPERED): 1}


def test_a_fault_keeps_new_shares_away_and_lets_go_of_those_that_linger_at_the_second_look(world: World) -> None:
    world.client.states[SERVER] = ServerStatus.FAULT
    assert "(3 left)" in world.faulty().message
    assert world.client.let_go == [], "most end by their own error"
    world.client.pids = (502,)
    assert "(1 left)" in world.faulty().message
    assert world.client.let_go == [502]
    world.client.states[SERVER] = ServerStatus.ACTIVE
    assert world.look() == {SERVER: ServerStatus.ACTIVE}
    assert [told.reason for told in world.incidents.pending()] == [Reason.MPS_FAULT, Reason.RECOVERED]


def test_another_server_in_fault_begins_again(world: World) -> None:
    world.client.states = {1: ServerStatus.FAULT}
    world.faulty()
    world.client.states = {2: ServerStatus.FAULT}
    world.faulty()
    assert world.client.let_go == []


def test_a_server_may_take_its_time_to_come_up_but_not_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("enforcer.mps.health_check.time.monotonic", lambda: now)
    world.client.states[SERVER] = ServerStatus.INITIALIZING
    world.look()
    now += health_check.INITIALIZING_SECONDS
    world.look()
    now += 1
    assert "has been starting for more than 60 s" in world.faulty().message
    world.client.states[SERVER] = ServerStatus.ACTIVE
    world.look()
    world.client.states[SERVER] = ServerStatus.INITIALIZING
    world.look()


def test_a_daemon_too_old_to_know_its_servers_status_is_no_failure(world: World) -> None:
    world.client.states[SERVER] = None
    assert world.look() == {SERVER: None}


@pytest.mark.parametrize(("mib", "whole"), [(1, 1), (1023, 1023), (1024, 1024), (1025, 2048), (143771, 144384)])
def test_limits_are_whole_gib_where_the_daemon_shows_no_more(mib: int, whole: int) -> None:
    assert whole_gib(mib) == whole


def test_the_same_thing_is_counted_always_and_reported_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = 1000.0, IncidentLog()
    monkeypatch.setattr("enforcer.mps.incidents.time.monotonic", lambda: now)
    for _ in range(5):
        told.record(Incident(GPU, Reason.MPS_CONTROL_BLOCKED, "blocked"), pod_uid="a")
    told.record(Incident(GPU, Reason.MPS_CONTROL_BLOCKED, "blocked"), pod_uid="b")
    assert len(list(told.pending())) == 2
    now += incidents.SAME
    told.record(Incident(GPU, Reason.MPS_CONTROL_BLOCKED, "blocked"), pod_uid="a")
    assert len(list(told.pending())) == 1
    assert told.counts == {(GPU, Reason.MPS_CONTROL_BLOCKED): 7}
    assert list(told.pending()) == []
