from dataclasses import replace
from typing import Any

import pytest

from enforcer.detection.detector import has_no_grace, namespaces_exceeding
from enforcer.detection.forecast import describe
from enforcer.detection.fresh import exceeding, is_fresh, known_since, within_since
from enforcer.detection.kill_history import RecentKill
from enforcer.detection.types import DetectorConfig, DetectorState
from enforcer.quota.types import OnExceed
from tests.unit.enforcer.detection.test_detector import Bench
from tests.unit.enforcer.made import GPU, OTHER_GPU, holder, quota

PLACE = ("new", "model")
THREE = tuple(RecentKill(990.0, "asr", (pod, "model")) for pod in "xyz")
NEW = quota(pod_uid="new", container_id="e" * 64)
OVER = holder(10, 9000, "e" * 64)


def bench(kills: tuple[RecentKill, ...] = THREE, **state: Any) -> Bench:
    made = Bench(NEW, quota(namespace="tts", pod_uid="calm", container_id="f" * 64))
    made.state = replace(DetectorState(within={}, kills=kills), **state)
    return made


def test_three_different_pods_of_one_namespace_have_to_be_killed_or_to_end_over_quota() -> None:
    assert exceeding(THREE) == {"asr"}
    assert exceeding(THREE[:2]) == frozenset()
    assert exceeding((*THREE[:2], replace(THREE[0], at=1.0), RecentKill(1.0, "tts", ("z", "model")))) == frozenset()
    assert namespaces_exceeding(DetectorState(kills=THREE[:1], ended=THREE[1:])) == {"asr"}


def test_a_container_is_fresh_until_it_was_within_its_quota_for_a_minute_without_a_break() -> None:
    assert within_since(100.0, 159.0, within=True) == 100.0
    assert within_since(100.0, 159.0, within=False) == 159.0
    assert within_since(100.0, 160.0, within=False) == 100.0, "from then on it is not fresh whatever it does"
    assert [is_fresh({PLACE: 100.0}, PLACE, now) for now in (159.9, 160.0)] == [True, False]
    assert is_fresh({}, PLACE, 1e6)


def test_what_an_enforcer_without_memory_sees_running_is_not_fresh() -> None:
    assert known_since(None, PLACE, 100.0) == 40.0
    assert known_since(None, PLACE, 7.0) == 0.0
    assert known_since({}, PLACE, 100.0) == 100.0
    assert known_since({PLACE: 5.0}, PLACE, 100.0) == 5.0


def test_a_fresh_container_of_such_a_namespace_is_killed_at_its_third_sample_whatever_the_kill_rate() -> None:
    node = bench()
    decided = [[each.decision.value for each in node.see(OVER)] for _ in range(3)]
    assert decided == [["GraceStarted"], [], ["Warned", "Kill"]]
    assert node.state.kills[-1].free
    assert has_no_grace(node.state, NEW, node.now)
    assert "has no grace period: 3 pods of asr" in describe(node.state, NEW, node.now, DetectorConfig())


def test_its_grace_period_is_back_after_a_minute_within_its_quota() -> None:
    node = bench(within={PLACE: 930.0})
    for _ in range(4):
        node.see(OVER)
    assert node.decisions().count("Kill") == 0


def test_it_has_one_where_only_two_pods_were_killed_or_all_of_another_namespace() -> None:
    for kills in (THREE[:2], tuple(replace(kill, namespace="tts") for kill in THREE)):
        node = bench(kills)
        for _ in range(4):
            node.see(OVER)
        assert node.decisions().count("Kill") == 0


def test_a_fresh_container_that_ends_over_quota_counts_and_one_that_frees_memory_does_not() -> None:
    for usages, ended in (((), 1), ((holder(10, 7, "e" * 64),), 0)):
        node = bench(())
        for _ in range(3):
            node.see(OVER)
        node.see(*usages)
        assert len(node.state.ended) == ended
    assert node.state.ended == ()


def test_where_only_a_warning_is_wanted_nothing_counts() -> None:
    node = Bench(replace(NEW, on_exceed=OnExceed.WARN))
    node.state = DetectorState(within={})
    for _ in range(3):
        node.see(OVER)
    node.see()
    assert node.state.ended == ()


def test_a_container_that_was_killed_does_not_count_twice() -> None:
    node = bench()
    for _ in range(3):
        node.see(OVER)
    node.see()
    assert node.state.ended == ()


def test_while_the_gpu_cannot_be_read_a_container_does_not_become_settled() -> None:
    node = bench(())
    for _ in range(200):
        node.blind()
    assert node.state.within is not None
    assert node.state.within[PLACE] == node.now


@pytest.mark.parametrize(("after", "ended"), [(59.5, 1), (60.0, 0)])
def test_one_that_is_no_longer_fresh_when_it_ends_does_not_count(after: float, ended: int) -> None:
    node = bench(())
    for _ in range(3):
        node.see(OVER)
    node.see(after=after)
    assert len(node.state.ended) == ended


def test_who_is_over_quota_on_one_gpu_is_not_within_it_whatever_it_holds_of_another() -> None:
    node = Bench(NEW, replace(NEW, gpu=OTHER_GPU))
    node.state = DetectorState(within={PLACE: 990.0})
    node._take({GPU: {"e" * 64: (OVER,)}, OTHER_GPU: {}}, 0.5)
    assert node.state.within == {PLACE: node.now}
