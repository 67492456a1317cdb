"""Containers that put new processes in place of those that are ended, and those with many."""

import signal
import time
from pathlib import Path

import pytest

from enforcer.attribution.procfs import PidHandle
from enforcer.audit.kill_records import ESCALATED, NO_FIRST
from enforcer.kill.process_kill import KillTimeouts
from enforcer.quota.types import OnExceed
from gpushare.reasons import Reason
from tests.unit.enforcer.kill.test_executor import Handle, Process, World, at_look, process
from tests.unit.enforcer.made import quota

DEAF = (signal.SIGKILL,)


def respawner(folder: Path, *, chief: Process | None = None) -> World:
    """A container whose first process holds nothing and starts another one for each that ends."""
    world = World(folder, process(501, 9000, dies_of=DEAF), *([chief] if chief else []))
    world.leaders = {500}

    def replace_them(look: int) -> None:
        living = [each for each in world.processes.values() if not each.ended]
        if not [each for each in living if each.holds] and (not chief or not chief.ended):
            world.processes[600 + look] = process(600 + look, 7000, dies_of=DEAF)

    world.on_look = replace_them
    return world


def test_all_of_a_round_are_released_then_all_get_sigterm_then_all_sigkill(tmp_path: Path) -> None:
    world = World(tmp_path, *(process(pid, 5000, dies_of=DEAF) for pid in (501, 502, 503)))
    world.answer = True
    assert world.run().reason is Reason.KILLED
    words = ("terminate_client", "SIGTERM", "SIGKILL")
    assert world.story == [f"{word} {pid}" for word in words for pid in (501, 502, 503)]
    assert world.kinds() == ["INTENT", "OUTCOME"]
    rows = {row["pid"]: row["steps"] for row in world.records()[-1]["targets"]}
    assert rows == dict.fromkeys((501, 502, 503), ",".join(words))


def test_twenty_that_do_not_hear_are_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, clock = World(tmp_path, *(process(500 + n, 5000, dies_of=DEAF) for n in range(20))), [0.0]

    class Slow(Handle):
        def ended(self, seconds: float = 0.0) -> bool:
            clock[0] += 0.0 if self.process.ended else seconds
            return self.process.ended

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    world.pin = lambda pid: Slow(world.processes[pid], world)  # type: ignore[method-assign]
    world.timeouts = KillTimeouts(term=5.0, kill=5.0)
    assert world.run().reason is Reason.KILLED
    assert clock[0] == pytest.approx(5.0)


def test_back_under_while_the_second_was_checked_spares_the_first_to_which_nothing_was_done(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 5000))

    def shrink() -> None:
        for each in world.processes.values():
            each.mib = 100

    at_look(world, 3, shrink)
    assert world.run().reason is Reason.BACK_UNDER_QUOTA
    assert (world.signals(), world.kinds()) == ([], ["INTENT", "ABORTED"])


def test_the_first_was_released_so_it_is_ended_though_the_second_need_not_be(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 5000))
    world.answer = True

    def shrink() -> None:
        world.processes[501].holds, world.processes[502].mib = False, 9

    at_look(world, 3, shrink)
    assert world.run().reason is Reason.KILLED
    assert world.story == ["terminate_client 501", "SIGTERM 501"]


def test_after_one_was_refused_those_released_before_it_are_ended_and_nobody_else_is(tmp_path: Path) -> None:
    world = World(tmp_path, *(process(pid, 5000) for pid in (501, 502, 503)))
    world.answer, world.refused = True, {502}
    assert world.run().reason is Reason.TERMINATE_FAILED
    assert world.story == ["terminate_client 501", "terminate_client 502", "SIGTERM 501"]


def test_who_starts_new_ones_in_their_place_is_ended_whole_after_one_round(tmp_path: Path) -> None:
    chief = process(500, 0, holds=False)
    world = respawner(tmp_path, chief=chief)
    result = world.run(world.processes[501])
    assert chief.ended
    assert result.reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 501", "SIGKILL 501", "SIGTERM 500"]
    assert world.kinds() == ["INTENT", "OUTCOME", "INTENT", "OUTCOME"]
    first, _, second, _ = world.records()
    assert "escalated" not in first
    assert (second["escalated"], second["first"]) == (ESCALATED, 500)
    assert (first["usedMiB"], second["usedMiB"]) == (9000, 7000)
    assert {each.pid for each in result.outcomes} >= {500, 501}
    assert "the whole container" in world.notices[-1].note
    assert world.whole()


def test_one_that_goes_on_even_after_that_is_given_up_for_now(tmp_path: Path) -> None:
    world = respawner(tmp_path, chief=process(500, 0, holds=False))

    def always(look: int) -> None:
        if not any(each.holds and not each.ended for each in world.processes.values()):
            world.processes[600 + look] = process(600 + look, 7000)

    world.on_look = always
    assert world.run(world.processes[501]).reason is Reason.LIMIT_EXCEEDED
    assert "SIGTERM 500" in world.signals()


def test_a_respawner_without_a_first_process_of_its_own_costs_so_many_rounds_and_no_more(tmp_path: Path) -> None:
    world = respawner(tmp_path)
    world.timeouts = KillTimeouts(term=0, kill=0, rounds=3)
    assert world.run().reason is Reason.LIMIT_EXCEEDED
    assert len(world.signals()) == 2 + 2 * 3
    assert world.kinds() == ["INTENT", "OUTCOME"] * 2


def test_a_respawner_without_a_first_process_loses_who_starts_the_new_ones(tmp_path: Path) -> None:
    world = respawner(tmp_path, chief=process(500, 0, holds=False))
    world.leaders, world.answer, world.timeouts = set(), True, KillTimeouts(term=0, kill=0, rounds=3)
    result = world.run(world.processes[501])
    assert result.reason is Reason.KILLED
    assert all(each.ended for each in world.processes.values())
    asked = [each for each in world.story if each.startswith("terminate_client")]
    assert "terminate_client 500" not in asked, "who uses no GPU is no client of MPS"
    assert {f"terminate_client {each.identity.pid}" for each in world.processes.values() if each.holds} == set(asked)
    second = world.records()[2]
    assert (second["escalated"], second["note"]) == (ESCALATED, NO_FIRST)
    assert 500 in {row["pid"] for row in world.records()[3]["targets"]}
    assert world.whole()


def test_who_starts_others_is_spared_with_them_once_the_container_is_back_under_its_quota(tmp_path: Path) -> None:
    world = World(tmp_path, process(500, 0, holds=False), process(501, 9000))
    at_look(world, 3, lambda: setattr(world.processes[501], "mib", 9))
    assert world.run(world.processes[501], about=quota(on_exceed=OnExceed.KILL_CONTAINER)).acted is False
    assert world.signals() == []


def test_an_attempts_time_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    world = respawner(tmp_path)
    world.timeouts = KillTimeouts(term=0, kill=0, total=0)
    assert world.run().reason is Reason.LIMIT_EXCEEDED
    assert world.signals() == ["SIGTERM 501", "SIGKILL 501", "SIGTERM 604", "SIGKILL 604"]


def test_who_did_it_again_and_again_is_ended_whole_at_once(tmp_path: Path) -> None:
    world = respawner(tmp_path, chief=process(500, 0, holds=False))
    world.respawns = True
    assert world.run(world.processes[501]).reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 500"]
    assert (world.records()[0]["escalated"], world.kinds()) == (ESCALATED, ["INTENT", "OUTCOME"])


def test_where_it_has_no_first_process_all_of_them_are_ended(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 3000))
    world.respawns = True
    assert world.run(about=quota()).reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 501", "SIGTERM 502"]
    assert world.records()[0]["escalated"] == ESCALATED


def test_too_few_descriptors_for_all_are_no_respawning(tmp_path: Path) -> None:
    world = World(tmp_path, process(500, 0, holds=False), process(501, 9000), process(502, 8000))
    world.leaders = {500}
    pin, opened = world.pin, list[int]()

    def scarce(pid: int) -> PidHandle | None:
        opened.append(pid)
        if len(opened) == 2:
            raise OSError("Too many open files")
        return pin(pid)

    world.pin = scarce  # type: ignore[method-assign]
    assert world.run(world.processes[501], world.processes[502]).reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 501", "SIGTERM 502"]
