"""Processes that die with another one: a container's first process takes all others with it."""

from pathlib import Path

from enforcer.ladder import REFUSALS
from gpushare.reasons import Reason
from tests.unit.enforcer.test_act import World, process


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


def test_a_refusal_is_nothing_done_and_its_owner_is_told_so(tmp_path: Path) -> None:
    """It costs no other container its turn: what did nothing to anybody is no kill that the breaker counts."""
    world = World(tmp_path, process(501, 9000))
    world.answer = False
    result = world.run()
    assert result.reason is Reason.TERMINATE_FAILED
    assert not result.acted
    assert "none of its processes was signalled" in world.notices[0].note
    assert "ended 1" not in world.notices[0].note


def test_one_that_was_released_before_another_refused_was_acted_upon(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000), process(502, 1000))
    world.answer, world.leaders, world.refused = True, {501}, {502}
    assert world.run(world.processes[501]).acted
