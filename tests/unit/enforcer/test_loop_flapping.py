"""Who goes over its quota and back, again and again: what is logged, reported and recorded of it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from enforcer.audit.kill_records import ProcessOutcome
from enforcer.kill.report import NAMED, KillResult
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU, quota
from tests.unit.enforcer.test_loop import World, make, wait_for


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_grace_that_begins_again_and_again_is_recorded_once_a_minute(world: World) -> None:
    world.quotas[0] = quota(grace_seconds=60.0)
    for turn in range(150):
        world.reader.used[GPU] = {101: 1000 if turn % 2 else 4150}
        world.look()
    world.enforcer._parts.audit_log.close()
    assert world.kinds() == ["GRACE_STARTED", "GRACE_STARTED"]


def test_flapping_below_the_grace_period_makes_one_warning_and_then_one_in_five_minutes_that_counts(
    world: World,
) -> None:
    world.quotas[0] = quota(grace_seconds=600.0)
    with capture_logs() as logs:
        for turn in range(800):
            world.reader.used[GPU] = {101: 1000 if turn % 8 >= 6 else 4150}
            world.look()
    world.enforcer._parts.audit_log.close()
    evaluated = Counter(each["decision"] for each in logs if each["event"] == "decided" and each["log_level"] == "info")
    assert evaluated == {"GraceStarted": 7, "Warned": 2, "BackUnder": 2}, "once a minute, and twice in ten"
    assert world.decisions == []
    assert 'gpu_share_limit_violations_total{action="warned"} 100.0' in world.scrape(), "it went over that often"
    assert [notice.reason for notice in world.notices] == [Reason.OVER_QUOTA, Reason.BACK_UNDER_QUOTA] * 2
    assert "for the 76th time in 5 min; the enforcer kills its processes" in world.notices[2].note
    assert [record.get("times") for record in world.records() if record["kind"] == "WARNED"] == [None, 76]


@pytest.mark.parametrize(("reason", "kills"), [(Reason.BACK_UNDER_QUOTA, 2), (Reason.TERMINATE_FAILED, 1)])
def test_who_was_back_within_its_quota_at_the_last_moment_has_no_time_to_exceed_it_again(
    world: World, reason: Reason, kills: int
) -> None:
    world.execute = lambda _: KillResult(reason)
    world.reader.used[GPU] = {101: 5000}
    while not world.enforcer._pending:
        world.look()
    wait_for(lambda: all(future.done() for future in world.enforcer._pending))
    world.look()
    wait_for(lambda: all(future.done() for future in world.enforcer._pending))
    assert len(world.decisions) == kills


def test_the_log_names_some_of_the_processes_of_a_kill_and_counts_all(world: World) -> None:
    ended = [ProcessOutcome(pid=pid, start=1, used_mib=0, result=Reason.KILLED) for pid in range(1000, 6000)]
    world.execute = lambda _: KillResult(Reason.KILLED, tuple(ended))
    world.reader.used[GPU] = {101: 5000}
    while not world.enforcer._pending:
        world.look()
    wait_for(lambda: all(future.done() for future in world.enforcer._pending))
    with capture_logs() as logs:
        world.look()
    (done,) = [each for each in logs if each["event"] == "kill done"]
    assert (done["ended"], done["ended_total"]) == ([*range(1000, 1000 + NAMED)], 5000)
