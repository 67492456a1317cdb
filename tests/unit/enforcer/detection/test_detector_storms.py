"""When so much would be ended that the breaker opens instead."""

from dataclasses import replace

import pytest

from enforcer.detection.detector import container_key
from enforcer.detection.kill_history import RecentKill, tenant_of
from enforcer.detection.storm import Opening
from enforcer.detection.types import Decision, DetectorState, ViolationState
from tests.unit.enforcer.detection.test_detector_exactly import (
    KEY,
    OTHER_KEY,
    OVER,
    PLACE,
    _cases,
    _crowd,
    _decided,
    _due,
    _look,
    _usages,
)
from tests.unit.enforcer.made import neighbour, quota


@pytest.mark.parametrize(("greedy", "modest", "storm"), [(4, 3, True), (4, 4, False), (3, 2, False)])
def test_more_than_a_minutes_kills_that_are_most_of_all_there_is_are_a_storm(
    greedy: int, modest: int, *, storm: bool
) -> None:
    wanted, spared = _crowd(greedy), _crowd(modest, first=50)
    state, decisions = _decided(DetectorState(cases=_cases(wanted)), wanted + spared, wanted)
    assert state.open is storm
    assert decisions.count("BreakerOpen") == (greedy if storm else 0)


@pytest.mark.parametrize(("spared", "storm"), [(["asr"], True), (["tts"], False), (["tts", "chat"], False)])
def test_they_have_to_be_most_of_the_namespaces_too(spared: list[str], *, storm: bool) -> None:
    wanted = _crowd(6)
    others = [each for n, name in enumerate(spared) for each in _crowd(1, name, 50 + n)]
    state, _ = _decided(DetectorState(cases=_cases(wanted)), wanted + others, wanted)
    assert state.open is storm


def test_kills_of_pods_that_are_there_count_for_ten_minutes_and_of_others_for_one() -> None:
    greedy = _crowd(5)
    due = greedy[:1]
    there = [
        RecentKill(now, "asr", container_key(each)) for now, each in zip((10.0, 20.0, 30.0), greedy[1:], strict=False)
    ]
    state, _ = _decided(DetectorState(cases=_cases(due), kills=tuple(there)), greedy, due)
    assert state.open, "four of five, most of them long ago"
    gone = [replace(each, place=(f"gone-{n}", "model")) for n, each in enumerate(there)]
    state, decisions = _decided(DetectorState(cases=_cases(due), kills=tuple(gone)), greedy, due)
    assert (state.open, decisions) == (False, ["Kill"])
    recent = [replace(each, at=40.25 + n) for n, each in enumerate(gone)]
    state, _ = _decided(DetectorState(cases=_cases(due), kills=tuple(recent)), due, due)
    assert state.open
    late = [replace(each, at=40.0) for each in gone]
    state, _ = _decided(DetectorState(cases=_cases(due), kills=tuple(late)), due, due)
    assert not state.open


def test_where_nobody_is_within_its_quota_so_many_kills_are_a_storm_though_few_are_killed() -> None:
    both = [*_crowd(1), *_crowd(1, "tts", 2)]
    kills = tuple(RecentKill(30.0 + n, each.namespace, container_key(each)) for n in range(2) for each in both)[:3]
    state, _ = _decided(DetectorState(cases=_cases(both), kills=kills), both, both[1:])
    assert state.open
    modest = _crowd(1, "chat", 3)
    state, _ = _decided(DetectorState(cases=_cases(both), kills=kills), both + modest, both[1:])
    assert not state.open, "one is within its quota"
    state, _ = _decided(DetectorState(cases=_cases(both), kills=kills[:2]), both, both[1:])
    assert not state.open, "three are no more than a minute allows"


def test_who_is_over_but_not_for_long_is_not_within_its_quota_either() -> None:
    both, late = [*_crowd(1), *_crowd(1, "tts", 2)], _crowd(1, "chat", 3)
    kills = tuple(RecentKill(30.0 + n, each.namespace, container_key(each)) for n in range(2) for each in both)[:3]
    coming = replace(_crowd(1, "code", 4)[0], container_id=None)
    cases = {**_cases(both), **_cases(late, over_for=0.5)}
    state, _ = _decided(DetectorState(cases=cases, kills=kills), [*both, *late, coming], [both[1], *late])
    assert state.open
    state, _ = _decided(DetectorState(cases=_cases(both), kills=kills), [*both, *late, coming], both[1:])
    assert not state.open


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("now", [True, False])
def test_whether_one_is_over_its_quota_is_what_this_look_says(*, before: bool, now: bool) -> None:
    both, third = [*_crowd(1), *_crowd(1, "tts", 2)], _crowd(1, "chat", 3)
    kills = tuple(RecentKill(30.0 + n, each.namespace, container_key(each)) for n in range(2) for each in both)[:3]
    cases = {**_cases(both), **(_cases(third, over_for=0.5) if before else {})}
    state, _ = _decided(DetectorState(cases=cases, kills=kills), both + third, both[1:] + (third if now else []))
    assert state.open is now


def test_a_container_that_is_killed_again_and_again_counts_twice_whether_it_is_due_or_not() -> None:
    both = [*_crowd(1), *_crowd(1, "tts", 2)]
    kills = tuple(RecentKill(30.0 + n, both[0].namespace, container_key(both[0])) for n in range(4))
    state, decisions = _decided(DetectorState(cases=_cases(both), kills=kills), both, both)
    assert (state.open, len(decisions)) == (False, 2)
    state, _ = _decided(
        DetectorState(cases=_cases(both), kills=(*kills, RecentKill(35.0, "tts", container_key(both[1])))), both, both
    )
    assert state.open


def test_one_container_alone_is_no_storm_however_often() -> None:
    kills = tuple(RecentKill(30.0 + n, "asr", PLACE) for n in range(9))
    state, decisions = _look(DetectorState(cases={KEY: _due()}, kills=kills), 100.0, quota(), over=_usages(OVER))
    assert (state.open, [each.decision for each in decisions]) == (False, [Decision.KILL])


def test_without_anybody_to_kill_there_is_no_storm() -> None:
    both = _crowd(2)
    kills = tuple(RecentKill(30.0 + n, "asr", container_key(both[n % 2])) for n in range(9))
    state, decisions = _decided(DetectorState(kills=kills), both, [])
    assert (state.open, decisions) == (False, [])


@pytest.mark.parametrize(("now", "opens"), [(3699.5, False), (3700.0, True)])
def test_the_same_containers_do_not_open_it_again_within_the_hour(now: float, *, opens: bool) -> None:
    wanted = _crowd(4)
    first, _ = _decided(DetectorState(cases=_cases(wanted)), wanted, wanted)
    assert (first.open, first.trips) == (True, {tenant_of(each): 100.0 for each in wanted})
    closed = DetectorState(cases=_cases(wanted, last=now - 0.5), trips=first.trips)
    again, decisions = _decided(closed, wanted, wanted, now)
    assert (again.open, "Kill" in decisions) == (opens, not opens)


def test_when_it_closes_by_itself_all_begin_a_new_grace_period_and_nobody_is_suspended() -> None:
    due, came = quota(), neighbour(namespace="tts")
    opening = Opening(by=frozenset({tenant_of(due)}), pods=frozenset({due.pod_uid}))
    known = DetectorState(cases={KEY: _due()}, open=True, opening=opening, trips={tenant_of(due): 90.0})
    state, decisions = _look(known, 100.0, due, came, over=_usages(OVER))
    assert (state.open, state.opening, state.trips, decisions) == (False, None, known.trips, [])
    assert state.cases == {KEY: ViolationState(used_mib=5000), OTHER_KEY: ViolationState()}


def test_who_opened_it_is_forgotten_where_an_operator_closed_it_while_the_enforcer_was_down() -> None:
    """Else that would close it by itself where an operator opens it later."""
    opening = Opening(by=frozenset({tenant_of(quota())}), pods=frozenset())
    state, _ = _look(DetectorState(opening=opening), 100.0, quota(), over={})
    assert state.opening is None
