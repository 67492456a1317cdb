from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.pod_deletion.deadlines import (
    MARGIN,
    PACE,
    TerminationDeadline,
    by_deadline,
    departure,
    lead_time,
    now_terminating,
    release_interval,
    running,
)

WALL = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
NOW = 1000.0
GRACES = st.one_of(st.integers(0, 3600), st.just(30))


def pod(ends_in: float | None = None, grace: int | None = 30, **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"uid": "a"}
    if ends_in is not None:
        metadata["deletionTimestamp"] = (WALL + timedelta(seconds=ends_in)).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata["deletionGracePeriodSeconds"] = grace
    return {"metadata": metadata, "status": status}


def leaving(end: float, uid: str = "a", grace: float = 30) -> TerminationDeadline:
    return TerminationDeadline(uid=uid, grace=grace, end=end, earliest=end - grace / 2)


def test_a_pod_that_is_not_being_deleted_is_not_leaving() -> None:
    assert departure(pod(), NOW, WALL) is None


def test_it_is_released_two_seconds_before_it_is_killed_or_a_tenth_of_a_long_grace() -> None:
    short, long = departure(pod(10, 10), NOW, WALL), departure(pod(300, 300), NOW, WALL)
    assert short is not None
    assert long is not None
    assert short.due(1) == NOW + 8
    assert long.due(1) == NOW + 270


@pytest.mark.parametrize("grace", [0, 1, None])
def test_a_pod_without_time_is_released_at_once(grace: int | None) -> None:
    found = departure(pod(grace or 0, grace), NOW, WALL)
    assert found is not None
    assert found.due(1) == NOW


def test_the_end_is_the_api_servers_word_where_we_come_to_it_late() -> None:
    found = departure(pod(12, 30), NOW, WALL)
    assert found is not None
    assert (found.end, found.earliest) == (NOW + 12, NOW - 3)


@pytest.mark.parametrize("skew", [-60, 60])
def test_a_wrong_clock_costs_a_program_no_more_than_half_of_its_grace(skew: int) -> None:
    found = departure(pod(30 + skew, 30), NOW, WALL, alive=True)
    assert found is not None
    assert NOW + 15 <= found.due(1) < NOW + 30


def test_a_deletion_seen_again_changes_nothing() -> None:
    first = departure(pod(30, 30), NOW, WALL, alive=True)
    again = departure(pod(30, 30), NOW + 9, WALL + timedelta(seconds=9), first)
    assert again == first


def test_a_deletion_asked_for_again_with_less_time_ends_sooner() -> None:
    first = departure(pod(30, 30), NOW, WALL, alive=True)
    sooner = departure(pod(14, 10), NOW + 4, WALL + timedelta(seconds=4), first)
    assert sooner is not None
    assert (sooner.end, sooner.due(1)) == (NOW + 14, NOW + 12)


def test_a_timestamp_that_cannot_be_read_takes_no_time_away() -> None:
    broken = pod(30, 30)
    broken["metadata"]["deletionTimestamp"] = "soon"
    found = departure(broken, NOW, WALL, alive=True)
    assert found is not None
    assert found.end == NOW


@given(grace=GRACES, ends_in=st.integers(-100, 3700), alive=st.booleans(), beside=st.integers(1, 500))
def test_nobody_is_released_in_the_first_half_of_a_grace_that_has_just_begun(
    grace: int, ends_in: int, beside: int, *, alive: bool
) -> None:
    found = departure(pod(ends_in, grace), NOW, WALL, alive=alive)
    assert found is not None
    if grace <= 1:
        assert found.due(beside) == NOW
    else:
        assert found.due(beside) >= (NOW + grace / 2 if alive else found.end - grace / 2)
        assert found.end <= NOW + grace


@given(grace=st.floats(0, 3600), pods=st.integers(1, 500))
def test_more_pods_are_begun_sooner_but_never_before_half_of_the_grace(grace: float, pods: int) -> None:
    assert lead_time(grace, pods) <= lead_time(grace, pods + 1) <= grace / 2


@given(left=st.integers(1, 500), seconds=st.floats(-10, 100))
def test_the_pace_fades_so_that_all_have_their_turn_in_time(left: int, seconds: float) -> None:
    each = release_interval(left, seconds)
    assert 0 <= each <= PACE
    assert 2 * each * left <= max(0.0, seconds - MARGIN) + 1e-9


def test_who_is_killed_first_comes_first_and_who_has_time_is_left() -> None:
    later, soon, now = leaving(NOW + 20, "b"), leaving(NOW + 2, "c"), leaving(NOW + 1, "d")
    assert [each.uid for each in by_deadline([later, soon, now], NOW, 3)] == ["d", "c"]


def test_a_deleted_object_says_whether_its_containers_ran() -> None:
    assert running(pod(containerStatuses=[{"state": {"running": {}}}]))
    assert running(pod(initContainerStatuses=[{"state": {"running": {}}}]))
    assert not running(pod(containerStatuses=[{"state": {"terminated": {}}}]))
    assert not running(pod())
    assert now_terminating("a", NOW).due(1) == NOW
