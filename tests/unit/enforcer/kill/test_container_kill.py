"""The phases of one kill: what happens before each signal, and to whom it is not sent."""

import signal
from collections.abc import Callable
from pathlib import Path

from enforcer.attribution.procfs import PidHandle
from enforcer.quota.types import OnExceed
from gpushare.reasons import Reason
from tests.unit.enforcer.kill.test_executor import Handle, World, at_look, process
from tests.unit.enforcer.kill.test_executor_changed import now_is
from tests.unit.enforcer.made import quota

STUBBORN = (signal.SIGKILL,)


class Waiting(Handle):
    """Notes for how long it was waited for."""

    def __init__(self, process: object, world: World, waits: list[tuple[int, float]]) -> None:
        super().__init__(process, world)  # type: ignore[arg-type]
        self.waits = waits

    def ended(self, seconds: float = 0.0) -> bool:
        if seconds:
            self.waits.append((self.pid, seconds))
        return super().ended(seconds)


def waits_of(world: World) -> list[tuple[int, float]]:
    waits: list[tuple[int, float]] = []

    def pin(pid: int) -> PidHandle | None:
        return Waiting(world.processes[pid], world, waits)

    world.pin = pin  # type: ignore[method-assign]
    return waits


def test_one_that_mps_refused_is_not_signalled_and_the_others_are(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 8000))
    world.answer, world.refused = True, {502}
    assert world.run().reason is Reason.TERMINATE_FAILED
    assert [each.got for each in world.processes.values()] == [[signal.SIGTERM], []]


def test_new_processes_that_end_with_the_first_are_terminated_before_each_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=STUBBORN), process(502, 100))
    world.answer, world.leaders = True, {501}

    def fork(_: int) -> None:
        if world.signals():
            world.processes[503] = process(503, 100)

    world.on_look = fork
    world.run(world.processes[501])
    assert world.story == [
        "terminate_client 501", "terminate_client 502", "SIGTERM 501", "terminate_client 503", "SIGKILL 501",
    ]  # fmt: skip


def test_while_one_of_those_is_refused_the_first_gets_no_signal_and_is_not_waited_for(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 100))
    world.answer, world.leaders, world.refused = True, {501}, {502}
    waits = waits_of(world)
    world.timeouts = type(world.timeouts)(term=2.0, kill=5.0)
    assert world.run(world.processes[501]).reason is Reason.TERMINATE_FAILED
    assert (world.processes[501].got, waits) == ([], [])
    assert {row["pid"]: (row["result"], row["steps"]) for row in world.records()[-1]["targets"]} == {
        501: ("TerminateFailed", "terminate_client"), 502: ("TerminateFailed", "terminate_client refused"),
    }  # fmt: skip


def test_each_process_that_ends_with_several_leaders_is_terminated_once_and_refused_for_all(tmp_path: Path) -> None:
    world = World(tmp_path, *(process(pid, 5000) for pid in (501, 502, 503)))
    world.answer, world.leaders, world.refused = True, {501, 502}, {503}
    assert world.run(world.processes[501], world.processes[502]).reason is Reason.TERMINATE_FAILED
    assert world.story == [f"terminate_client {pid}" for pid in (501, 502, 503)]
    assert [(row["pid"], row["result"]) for row in world.records()[-1]["targets"]] == [
        (501, "TerminateFailed"), (502, "TerminateFailed"), (503, "TerminateFailed"),
    ]  # fmt: skip


def test_right_before_each_signal_those_to_which_nothing_was_done_are_rechecked(tmp_path: Path) -> None:
    """501 is no client and gets both signals; 502 is terminated; 503 ignores SIGTERM, so it is rechecked twice."""
    world = World(tmp_path, *(process(pid, 5000, dies_of=STUBBORN) for pid in (501, 502, 503)))
    world.ignorant = {503}
    checked: list[tuple[int, int]] = []
    identify = world.identify

    def terminate(pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        checked.clear()
        return True if pid == 502 else None

    def noting(pid: int) -> object:
        checked.append((pid, len(world.signals())))
        return identify(pid)

    world.terminate = terminate  # type: ignore[method-assign]
    world.identify = noting  # type: ignore[assignment,method-assign]
    assert world.run().reason is Reason.KILLED
    assert checked == [(501, 0), (503, 0), (503, 2)]


def test_one_that_is_spared_then_gets_no_signal_and_the_others_do(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 4500))

    def shrink() -> None:
        world.processes[502].holds = False

    at_look(world, 4, shrink)
    world.run()
    assert [each.got for each in world.processes.values()] == [[signal.SIGTERM], []]


def test_a_signal_is_waited_for_by_its_own_timeout(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=()))
    waits = waits_of(world)
    world.timeouts = type(world.timeouts)(term=20.0, kill=50.0)
    world.run(about=quota(on_exceed=OnExceed.KILL))
    assert [(pid, round(seconds, -1)) for pid, seconds in waits] == [(501, 20.0), (501, 50.0)]


def test_a_container_that_replaces_its_processes_is_not_waited_for_after_sigterm(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, dies_of=STUBBORN))
    waits = waits_of(world)
    world.timeouts, world.respawns = type(world.timeouts)(term=20.0, kill=50.0), True
    assert world.run().reason is Reason.KILLED
    assert [(pid, round(seconds, -1)) for pid, seconds in waits] == [(501, 50.0)]


def test_what_starts_meanwhile_in_a_container_without_first_process_is_terminated_and_killed(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000))
    world.answer = True

    def start() -> None:
        world.processes |= {502: process(502, 3000), 503: process(503, 700, holds=False)}

    at_look(world, 2, start)
    assert world.run(about=quota(on_exceed=OnExceed.KILL_CONTAINER)).reason is Reason.KILLED
    assert world.story == [
        "terminate_client 501", "terminate_client 502", "SIGTERM 501", "SIGTERM 502", "SIGTERM 503",
    ]  # fmt: skip
    rows = {row["pid"]: row["usedMiB"] for row in world.records()[-1]["targets"]}
    assert rows == {501: 9000, 502: 3000, 503: 0}


def test_of_those_that_end_with_the_first_only_those_to_which_something_was_tried_are_on_record(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 0, holds=False), process(502, 9000), process(503, 0, holds=False))
    world.answer, world.leaders, world.refused = True, {501}, {502}
    result = world.run(world.processes[502], about=quota(on_exceed=OnExceed.KILL_CONTAINER))
    assert (result.reason, world.signals()) == (Reason.TERMINATE_FAILED, [])
    assert [(row["pid"], row["result"]) for row in world.records()[-1]["targets"]] == [
        (501, "TerminateFailed"), (502, "TerminateFailed"),
    ]  # fmt: skip


def test_a_policy_that_only_warns_by_now_spares_those_not_terminated_yet(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 4900))
    world.answer = True
    at_look(world, 3, lambda: now_is(world, None))
    assert world.run().reason is Reason.KILLED
    assert world.story == ["terminate_client 501", "SIGTERM 501"]
