"""MPS may keep us for seconds before it refuses, or says that this is none of its clients: it is looked again then."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.attribution.cgroup import ContainerRef
from enforcer.kill.process_kill import REFUSALS
from enforcer.quota.types import OnExceed
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.unit.enforcer.kill.test_executor import World, process
from tests.unit.enforcer.made import NEIGHBOUR, POD, quota

WHOLE = quota(on_exceed=OnExceed.KILL_CONTAINER)
BLOCKED, NO_CLIENT, REFUSED = "blocked", "no client", "refused for the last time"


def takes_long(world: World, answer: str, meanwhile: Callable[[], object], *slow: int) -> None:
    """MPS answers so, and meanwhile the world moves on. Of others than ``slow``, if given, it lets go at once."""
    if answer == REFUSED:
        world.answer = False
        for _ in range(REFUSALS - 1):
            world.run()
        world.story.clear()

    def terminate(pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        world.story.append(f"terminate_client {pid}")
        if slow and pid not in slow:
            return True
        meanwhile()
        if answer == BLOCKED:
            raise MpsError("no answer in time", Reason.MPS_CONTROL_BLOCKED)
        return False if answer == REFUSED else None

    world.terminate = terminate  # type: ignore[method-assign]


@pytest.mark.parametrize("answer", [BLOCKED, NO_CLIENT, REFUSED])
def test_who_came_back_under_quota_while_mps_kept_us_is_not_signalled(tmp_path: Path, answer: str) -> None:
    world = World(tmp_path, process())
    takes_long(world, answer, lambda: setattr(world.processes[501], "mib", 10))
    result = world.run()
    assert (result.reason, world.signals()) == (Reason.BACK_UNDER_QUOTA, [])
    assert not result.acted
    assert world.kinds()[-2:] == ["INTENT", "ABORTED"]
    assert world.records()[-1]["result"] == "BackUnderQuota"
    assert world.whole()


def test_who_still_is_over_after_that_is_ended(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    takes_long(world, BLOCKED, lambda: None)
    assert world.run().reason is Reason.KILLED
    assert world.story == ["terminate_client 501", "SIGTERM 501"]


def test_blind_after_that_is_aborted_without_a_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    takes_long(world, BLOCKED, lambda: setattr(world, "blind", True))
    assert (world.run().reason, world.signals()) == (Reason.NVML_UNAVAILABLE, [])
    assert world.kinds() == ["INTENT", "ABORTED"]


@pytest.mark.parametrize(
    "change", [{"cgroup_inode": 8}, {"owner": ContainerRef(POD, NEIGHBOUR)}, {"owner": None}], ids=str
)
def test_who_is_in_another_container_after_that_is_not_signalled(tmp_path: Path, change: dict[str, object]) -> None:
    one = process()
    world = World(tmp_path, one, process(502, 9000, holds=False))
    moved = replace(one.identity, **change)  # type: ignore[arg-type]

    def move() -> None:
        one.identity, world.processes[502].holds = moved, True

    takes_long(world, BLOCKED, move, 501)
    assert world.run(one).reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 502"], "the next round finds who holds it now"
    assert [row["pid"] for row in world.records()[-1]["targets"]] == [502]


def test_who_let_go_of_the_gpu_while_the_container_stays_over_is_not_signalled(tmp_path: Path) -> None:
    one, other = process(501, 9000), process(502, 100)

    def hand_over() -> None:
        one.holds, other.mib = False, 9000

    world = World(tmp_path, one, other)
    takes_long(world, BLOCKED, hand_over, 501)
    world.run(one)
    assert world.signals() == ["SIGTERM 502"]


def test_who_ended_by_itself_meanwhile_was_not_killed(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    takes_long(world, BLOCKED, lambda: setattr(world.processes[501], "ended", True))
    result = world.run()
    assert (result.reason, result.acted, world.kinds()) == (Reason.ALREADY_EXITED, False, ["INTENT", "OUTCOME"])


def test_who_was_released_goes_on_to_be_signalled_though_it_holds_nothing_any_more(tmp_path: Path) -> None:
    one = process()
    world = World(tmp_path, one)
    world.answer = True
    world.on_look = lambda _: setattr(one, "holds", not world.story)
    assert world.run().reason is Reason.KILLED
    assert world.story == ["terminate_client 501", "SIGTERM 501"]


def test_a_whole_container_is_spared_where_its_other_clients_took_so_long(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 0), process(502, 9000))
    world.leaders = {501}
    takes_long(world, BLOCKED, lambda: setattr(world.processes[502], "mib", 10 if len(world.story) == 2 else 9000))
    assert world.run(world.processes[502], about=WHOLE).reason is Reason.BACK_UNDER_QUOTA
    assert world.story == ["terminate_client 501", "terminate_client 502"]
    assert world.kinds() == ["INTENT", "ABORTED"]


def test_a_whole_container_goes_once_one_of_its_clients_was_released(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 0), process(502, 9000))
    world.leaders = {501}
    takes_long(world, BLOCKED, lambda: setattr(world.processes[502], "mib", 10), 501)
    world.on_look = lambda _: setattr(world.processes[502], "holds", len(world.story) < 2)
    world.run(world.processes[502], about=WHOLE)
    assert world.signals() == ["SIGTERM 501"]
    assert {row["pid"]: row["steps"] for row in world.records()[-1]["targets"]} == {
        501: "MpsControlBlocked,SIGTERM", 502: "terminate_client,with 501",
    }  # fmt: skip


def test_of_a_spared_first_process_those_that_were_released_are_on_record(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 0), process(502, 9000))
    world.leaders = {501}
    takes_long(world, BLOCKED, lambda: None, 501)
    world.on_look = lambda _: setattr(world, "blind", len(world.story) == 2)
    result = world.run(world.processes[502], about=WHOLE)
    assert (result.reason, result.acted, world.signals()) == (Reason.NVML_UNAVAILABLE, True, [])
    assert world.kinds() == ["INTENT", "OUTCOME"]
    assert [(row["pid"], row["result"]) for row in world.records()[-1]["targets"]] == [(502, "ClientTerminated")]
