"""What a container may hold changes while it is being ended: the disk and MPS may take half a minute over that."""

from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.kill import circuit_breaker
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import OnExceed, Quota
from gpushare.reasons import Reason
from tests.support.quotas import UnchangedQuotas, in_force
from tests.unit.enforcer.kill.test_executor import World, at_look, process
from tests.unit.enforcer.made import CONTAINER, neighbour, quota

RAISED = quota(memory_mib=9000)


def now_is(world: World, found: Quota | None) -> None:
    """Let every quota be this one."""

    def now(quota: Quota) -> Quota | None:
        assert quota.container_id == CONTAINER
        return found

    world.quotas = in_force(now)


def raised_while_mps_is_asked(world: World) -> None:
    asked = world.terminate

    def terminate(pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        now_is(world, RAISED)
        return asked(pid, gpu, ended)

    world.terminate = terminate  # type: ignore[method-assign]


def test_a_quota_that_was_raised_while_the_disk_was_busy_spares_whom_it_covers(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000))
    at_look(world, 2, lambda: now_is(world, RAISED))
    result = world.run()
    assert (result.reason, world.signals(), world.kinds()) == (Reason.BACK_UNDER_QUOTA, [], ["INTENT", "ABORTED"])


@pytest.mark.parametrize("mode", [OnExceed.KILL, OnExceed.KILL_CONTAINER])
def test_a_policy_that_only_warns_by_now_ends_nobody(tmp_path: Path, mode: OnExceed) -> None:
    world = World(tmp_path, process(501, 9000))
    at_look(world, 2, lambda: now_is(world, None))
    result = world.run(about=quota(on_exceed=mode))
    assert (result.reason, world.signals(), world.kinds()) == (Reason.NOT_ENFORCING, [], ["INTENT", "ABORTED"])
    assert "cancelled the kill" in world.notices[-1].note


def test_a_quota_that_was_raised_before_the_intent_leaves_no_record(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000))
    now_is(world, RAISED)
    assert world.run().reason is Reason.BACK_UNDER_QUOTA
    assert not world.folder.exists()


def test_of_one_that_is_still_over_only_as_many_end_as_the_new_quota_wants(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 4500))
    at_look(world, 2, lambda: now_is(world, RAISED))
    assert world.run().reason is Reason.KILLED
    assert world.signals() == ["SIGTERM 501"]


def test_a_quota_raised_while_mps_was_asked_stops_the_signal(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000))
    raised_while_mps_is_asked(world)
    result = world.run()
    assert (result.reason, world.signals(), world.kinds()) == (Reason.BACK_UNDER_QUOTA, [], ["INTENT", "ABORTED"])


def test_a_breaker_that_is_opened_by_hand_while_the_disk_is_busy_spares_everybody(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 9000))
    world.quotas = GuardedQuotas(tmp_path, UnchangedQuotas())
    at_look(world, 2, (tmp_path / circuit_breaker.NAME).touch)
    result = world.run()
    assert (result.reason, world.signals(), world.kinds()) == (Reason.NOT_ENFORCING, [], ["INTENT", "ABORTED"])
    assert circuit_breaker.reset(tmp_path)
    assert world.run().reason is Reason.KILLED


@pytest.mark.parametrize("changes", [False, True])
def test_after_a_round_it_is_asked_again_what_the_container_may_hold(tmp_path: Path, *, changes: bool) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 4500))
    at_look(world, 4, lambda: now_is(world, None) if changes else None)
    world.run(world.processes[501])
    assert world.signals() == (["SIGTERM 501"] if changes else ["SIGTERM 501", "SIGTERM 502"])


def test_a_whole_container_whose_end_has_begun_is_ended(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, 5000), process(502, 4500))
    world.answer = True
    raised_while_mps_is_asked(world)
    world.run(about=quota(on_exceed=OnExceed.KILL_CONTAINER))
    assert world.signals() == ["SIGTERM 501", "SIGTERM 502"]


def test_what_is_in_force_is_what_the_checkpoint_says_and_never_less_than_what_was_decided(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    decided = quota(on_exceed=OnExceed.KILL_CONTAINER)
    cases = [
        ([neighbour(), decided], decided),
        ([neighbour(), RAISED], RAISED),
        ([quota(memory_mib=10)], decided),
        ([quota(tolerance_mib=100)], quota(tolerance_mib=100)),
        ([quota(on_exceed=OnExceed.WARN)], None),
        ([quota(container_id="e" * 64)], None),
        ([quota(gpu="GPU-2")], None),
        ([quota(pod_uid="another")], None),
        ([neighbour(memory_mib=9000)], None),
    ]
    for quotas, expected in cases:
        checkpoint.write(quotas)
        assert checkpoint.in_force(decided) == expected, quotas


@pytest.mark.parametrize(("overdrawn", "reason"), [(False, Reason.BACK_UNDER_QUOTA), (True, Reason.KILLED)])
def test_who_takes_turns_over_its_quota_is_killed_where_a_budget_is_overdrawn(
    tmp_path: Path, reason: Reason, *, overdrawn: bool
) -> None:
    world = World(tmp_path, process())
    world.overdrawn = overdrawn
    world.on_look = lambda look: setattr(world.processes[501], "holds", look % 4 == 0)
    assert world.run().reason is reason
    assert bool(world.signals()) is overdrawn
