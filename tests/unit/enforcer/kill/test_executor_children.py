"""Processes that die with another one: a container's first process takes all others with it."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.container_processes import ContainerProcess, init_process
from enforcer.attribution.procfs import PidHandle
from enforcer.audit.kill_records import NO_FIRST
from enforcer.kill.process_kill import REFUSALS
from enforcer.quota.types import OnExceed
from gpushare.reasons import Reason
from tests.unit.enforcer.kill.test_executor import Handle, World, at_look, process
from tests.unit.enforcer.made import quota

WHOLE = quota(on_exceed=OnExceed.KILL_CONTAINER)


def test_who_dies_with_a_containers_first_process_is_released_before_it_is_signalled(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000), process(503, 500))
    world.answer, world.leaders = True, {501}
    result = world.run(world.processes[501])
    assert world.story == ["terminate_client 501", "terminate_client 502", "terminate_client 503", "SIGTERM 501"]
    assert result.reason is Reason.KILLED
    rows = {row["pid"]: row["steps"] for row in world.records()[-1]["targets"]}
    assert rows == {
        501: "terminate_client,SIGTERM", 502: "terminate_client,with 501", 503: "terminate_client,with 501",
    }  # fmt: skip
    assert {row["result"] for row in world.records()[-1]["targets"]} == {"Killed"}
    assert world.whole()


def test_while_one_of_them_is_not_released_the_first_process_gets_no_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000))
    world.answer, world.leaders, world.refused = True, {501}, {502}
    for _ in range(REFUSALS - 1):
        assert world.run(world.processes[501]).reason is Reason.TERMINATE_FAILED
    assert world.signals() == []
    assert world.run(world.processes[501]).reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 501"]


def test_beside_any_other_process_the_rest_of_a_container_is_let_be(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000))
    world.answer = True
    world.run(world.processes[501])
    assert world.story == ["terminate_client 501", "SIGTERM 501"]


def test_a_refusal_is_nothing_done_and_its_owner_is_notified_so(tmp_path: Path) -> None:
    """It costs no other container its turn: what did nothing to anybody is no kill that the breaker counts."""
    world = World(tmp_path, process(501, 9000))
    world.answer = False
    result = world.run()
    assert result.reason is Reason.TERMINATE_FAILED
    assert not result.acted
    assert "the enforcer signalled no process" in world.notices[0].note
    assert "ended 1" not in world.notices[0].note


def test_one_that_was_released_before_another_refused_was_acted_upon(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000))
    world.answer, world.leaders, world.refused = True, {501}, {502}
    assert world.run(world.processes[501]).acted


def test_of_those_that_would_have_died_with_it_each_is_on_record_with_what_was_done(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000), process(503, 500))
    world.answer, world.leaders, world.refused = True, {501}, {503}
    assert world.run(world.processes[501]).reason is Reason.TERMINATE_FAILED
    assert {row["pid"]: (row["result"], row["steps"]) for row in world.records()[-1]["targets"]} == {
        501: ("TerminateFailed", "terminate_client"),
        502: ("ClientTerminated", "terminate_client"),
        503: ("TerminateFailed", "terminate_client refused"),
    }


def test_who_comes_while_the_others_are_released_is_released_too_before_any_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000))
    world.leaders = {501}
    released = world.terminate

    def terminate(pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        released(pid, gpu, ended)
        if pid == 502:
            world.processes[504] = process(504, 100)
        return True

    world.terminate = terminate  # type: ignore[method-assign]
    world.run(world.processes[501])
    assert world.story == ["terminate_client 501", "terminate_client 502", "terminate_client 504", "SIGTERM 501"]


def test_one_that_hangs_already_is_not_released_again_with_the_first_process(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000, holds=False), process(502, 9000, dies_of=()))
    world.answer = True
    assert world.run(world.processes[502]).reason is Reason.UNKILLABLE
    world.story.clear()
    world.leaders, world.processes[501].holds = {501}, True
    world.run(world.processes[501])
    assert world.story == ["terminate_client 501", "SIGTERM 501"]


def crowd(folder: Path) -> World:
    """A container: a first process that holds nothing, and two that hold too much."""
    world = World(folder, process(501, 0, holds=False), process(502, 9000), process(503, 500))
    world.leaders = {501}
    return world


def test_a_whole_container_goes_by_its_first_process_after_all_its_clients_were_released(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.answer = True
    result = world.run(world.processes[502], world.processes[503], about=WHOLE)
    released, signals = world.story[:3], world.story[3:]
    assert sorted(released) == [f"terminate_client {pid}" for pid in (501, 502, 503)]
    assert signals == ["SIGTERM 501"]
    assert result.reason is Reason.KILLED
    intent, outcome = world.records()
    assert intent["first"] == 501
    assert {row["pid"] for row in intent["targets"]} == {501, 502, 503}
    rows = {row["pid"]: row["steps"] for row in outcome["targets"]}
    assert rows == {501: "terminate_client,SIGTERM"} | dict.fromkeys((502, 503), "terminate_client,with 501")


def test_who_holds_nothing_and_dies_with_it_is_on_record_too(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.processes[503].holds = False
    world.run(world.processes[502], about=WHOLE)
    assert {row["pid"]: row["usedMiB"] for row in world.records()[-1]["targets"]} == {501: 0, 502: 9000, 503: 0}
    assert {row["pid"]: row["steps"] for row in world.records()[-1]["targets"]}[503] == "with 501"


def test_a_first_process_that_would_not_hear_of_it_is_not_waited_for(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.ignorant = {501}
    world.run(world.processes[502], about=WHOLE)
    assert world.signals() == ["SIGKILL 501"]


def test_a_client_that_came_after_the_first_signal_is_released_before_the_second(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.answer, world.processes[501].dies_of = True, (signal.SIGKILL,)

    def fork() -> None:
        if world.signals() == ["SIGTERM 501"]:
            world.processes[504] = process(504, 100)

    world.on_look = lambda _: fork()
    world.run(world.processes[502], about=WHOLE)
    assert world.story[-3:] == ["SIGTERM 501", "terminate_client 504", "SIGKILL 501"]


def test_without_a_first_process_of_its_own_all_are_ended_and_it_is_reported(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.leaders = set()
    world.run(world.processes[502], world.processes[503], about=WHOLE)
    assert world.signals() == ["SIGTERM 502", "SIGTERM 503", "SIGTERM 501"]
    assert world.records()[0]["note"] == NO_FIRST


def test_for_anything_less_than_the_whole_container_its_first_process_is_let_be(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.run(world.processes[502])
    assert world.signals() == ["SIGTERM 502"]
    assert not {"first", "note"} & world.records()[0].keys()
    assert [row["pid"] for row in world.records()[0]["targets"]] == [502]


def test_once_one_of_a_whole_container_was_released_the_others_go_too_though_it_is_back_under(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 5000))
    world.answer = True

    def shrink() -> None:
        for each in world.processes.values():
            each.mib = 10

    at_look(world, 3, shrink)
    world.run(about=WHOLE)
    assert world.signals() == ["SIGTERM 501", "SIGTERM 502"]


class Closing(Handle):
    """Of no use once it was let go of."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def send(self, number: signal.Signals) -> bool:
        assert not self.closed
        return super().send(number)


def _closing(world: World) -> list[Closing]:
    opened: list[Closing] = []

    def take(pid: int) -> PidHandle | None:
        opened.append(Closing(world.processes[pid], world))
        return opened[-1]

    world.pin = take  # type: ignore[method-assign]
    return opened


def test_those_that_die_with_the_first_process_are_let_go_of_before_it_is_signalled(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    opened = _closing(world)
    pinned: list[set[int]] = []
    world.on_look = lambda _: pinned.append({each.pid for each in opened if not each.closed})
    world.run(world.processes[502], world.processes[503], about=WHOLE)
    assert world.signals() == ["SIGTERM 501"]
    assert pinned[0] == {502, 503}
    assert all(pids <= {501} for pids in pinned[1:])


def test_where_the_first_process_hangs_already_the_holders_are_ended_one_by_one(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    world.processes[501].dies_of = ()
    _closing(world)
    assert world.run(world.processes[502], about=WHOLE).reason is Reason.UNKILLABLE
    assert world.signals() == ["SIGTERM 501", "SIGKILL 501", "SIGTERM 502", "SIGTERM 503"]
    world.story.clear()
    world.processes[504] = process(504, 9000)
    world.run(world.processes[504], about=WHOLE)
    assert world.signals() == ["SIGTERM 504"]
    assert [record for record in world.records() if record["kind"] == "INTENT"][-1]["note"] == NO_FIRST


def test_what_the_first_process_holds_itself_is_on_record(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 500))
    world.leaders = {501}
    world.run(about=WHOLE)
    intent, outcome = ({row["pid"]: row["usedMiB"] for row in each["targets"]} for each in world.records())
    assert (intent, outcome[501]) == ({501: 9000, 502: 500}, 9000)


def test_back_under_while_the_disk_was_busy_spares_the_first_process(tmp_path: Path) -> None:
    world = crowd(tmp_path)
    at_look(world, 2, lambda: setattr(world.processes[502], "holds", False))
    assert world.run(world.processes[502], about=WHOLE).reason is Reason.BACK_UNDER_QUOTA
    assert (world.story, world.kinds()) == ([], ["INTENT", "ABORTED"])


def test_where_all_were_refused_nobody_else_of_a_whole_container_is_signalled(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 0, holds=False))
    world.refused.add(501)
    assert world.run(world.processes[501], about=WHOLE).reason is Reason.TERMINATE_FAILED
    assert world.signals() == []


def test_being_refused_with_a_new_process_each_time_is_no_veto(tmp_path: Path) -> None:
    world = World(tmp_path)
    for pid in range(501, 501 + REFUSALS):
        world.processes[pid] = process(pid)
        world.refused.add(pid)
        result = world.run(world.processes[pid])
        world.processes[pid].holds = False
    assert result.reason is Reason.KILLED
    assert world.signals() == [f"SIGTERM {500 + REFUSALS}"]


def member(pid: int, *inside: int, inode: int = 7) -> ContainerProcess:
    return ContainerProcess(Identity(pid=pid, start=pid, owner=None, cgroup_inode=inode), (pid, *inside))


FAMILIES = {
    "an ordinary container": ([member(11, 1), member(12, 7)], 11),
    "one in which a tenant made a namespace": ([member(11, 1), member(12, 7), member(13, 8, 1)], 11),
    "a host below another": ([member(11, 40, 1), member(12, 41, 2)], 11),
    "hostPID": ([member(11), member(12)], None),
    "hostPID, with a namespace made inside": ([member(11), member(12, 1)], None),
    "a shared namespace, its first process the sandbox": ([member(11, 7), member(12, 8)], None),
    "the same, with a namespace made inside": ([member(11, 7), member(12, 8, 1)], None),
    "two namespaces side by side": ([member(11, 1), member(12, 1)], None),
    "made again since": ([member(11, 1, inode=8)], None),
    "nobody left": ([], None),
    "the machine's own first process": ([member(1), member(2)], None),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_first_process_of_a_container_is_that_of_its_own_namespace_or_none(name: str) -> None:
    family, expected = FAMILIES[name]
    found = init_process(family, 7)
    assert (found.identity.pid if found else None) == expected
