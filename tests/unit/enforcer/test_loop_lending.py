"""Borrowed memory, as the loop tells, records and hands over who has to give it back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU, quota
from tests.unit.enforcer.test_loop import World, make, wait_for

LENT = quota(memory_mib=2048, limit_mib=12_288)
IDLE = quota(memory_mib=8192, pod_uid="other", pod="other-0", container="idle", container_id="e" * 64)
HELD = 5000
"""Leaves 2580 MiB of the simulated GPU beyond what is reserved and not held: less than the 4096 that have to be."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in make(tmp_path, enforcing=True):
        world.quotas[:] = [LENT, IDLE]
        yield world


def test_a_borrower_is_told_on_record_and_handed_over_when_its_notice_is_over(world: World) -> None:
    world.reader.used[GPU] = {101: HELD}
    first = world.look()["containers"][0]
    assert (first["limitMib"], first["borrowedMib"], first["killIn"]) == (12_288, HELD - 2048, None)
    told = world.look(2)["containers"][0]
    assert told["killIn"] == 10.0
    assert told["sentence"].startswith("model holds 5000 MiB: 2048 reserved, 2952 borrowed and is within")
    assert [(each.reason, each.warning) for each in world.notices] == [(Reason.RECLAIMED, True)]
    assert "kills its processes in 10.0s unless it frees 1516 MiB" in world.notices[0].note
    wait_for(lambda: world.enforcer._parts.audit_log.head.seq == 2)
    lent, record = world.records()
    assert (lent["kind"], lent["limitMiB"], lent["borrowedMiB"]) == ("LENT", 12_288, HELD - 2048)
    assert (record["kind"], record["cause"], record["reclaimMiB"]) == ("RECLAIM_NOTICE", "Reclaimed", 1516)
    assert (record["quotaMiB"], record["usedMiB"]) == (2048, HELD)
    world.look(19)
    assert not world.decisions
    world.look()
    wait_for(lambda: bool(world.decisions))
    (kill,) = world.decisions
    assert (kill.quota, kill.reclaim_mib, len(kill.targets)) == (LENT.without_loan(), 1516, 1)
    wait_for(lambda: all(future.done() for future in world.enforcer._pending))
    world.reader.used[GPU] = {}
    after = world.look(2)["containers"][0]
    assert (after["state"], after["budgetUsed"], after["borrowedMib"]) == ("Within", 0.0, 0)
    assert 'gpu_share_reclaims_total{action="killed"} 1.0' in world.scrape()
    assert 'gpu_share_reclaim_duration_seconds_bucket{le="10.0"} 0.0' in world.scrape()
    assert 'gpu_share_reclaim_duration_seconds_bucket{le="15.0"} 1.0' in world.scrape()
    assert 'gpu_share_limit_violations_total{action="killed"} 0.0' in world.scrape()


def test_a_container_that_borrows_in_turns_makes_one_record_in_five_minutes(world: World) -> None:
    for turn in range(120):
        world.reader.used[GPU] = {101: 3400 if turn % 4 else 2048}
        world.look()
    wait_for(lambda: world.enforcer._parts.audit_log.head.seq == 1)
    world.clock[0] += 300.0
    world.reader.used[GPU] = {101: 3400}
    world.look(4)
    wait_for(lambda: world.enforcer._parts.audit_log.head.seq == 2)
    assert [(each["kind"], each.get("times", 1)) for each in world.records()] == [("LENT", 1), ("LENT", 31)]
    assert world.notices == [], "an Event for what the container asked for tells its owner nothing"


def test_one_that_gives_back_in_time_is_warned_once_and_lives(world: World) -> None:
    world.reader.used[GPU] = {101: HELD}
    world.look(3)
    world.reader.used[GPU] = {101: HELD - 1516}
    world.look(30)
    assert [each.reason for each in world.notices] == [Reason.RECLAIMED]
    assert world.decisions == []


def test_a_pod_that_waits_for_its_memory_costs_a_notice_and_no_kill_at_once(world: World) -> None:
    world.reader.used[GPU] = {101: 12_000}
    with world.enforcer._parts.claim_wait.for_memory(IDLE.pod_uid):
        world.look(6)
        assert world.decisions == []
        assert len(world.notices) == 1
    world.look()
    wait_for(lambda: bool(world.decisions))
    assert world.decisions[0].quota == LENT.without_loan()


def test_without_enforcement_nothing_is_taken_back(tmp_path: Path) -> None:
    for world in make(tmp_path, enforcing=False):
        world.quotas[:] = [LENT, IDLE]
        world.reader.used[GPU] = {101: 12_000}
        world.look(30)
        assert (world.decisions, world.notices) == ([], [])
