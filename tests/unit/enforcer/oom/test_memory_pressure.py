"""Who is short of memory, and why a container that failed probably did."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.detection.types import ContainerState, DetectorState, Phase, key_of
from enforcer.oom.diagnosis import FROM_OUTSIDE, SLACK, WITHIN, Failure, diagnose, diagnosis_message, failures_of
from enforcer.oom.memory_pressure import KEPT, KEPT_SECONDS, ContainerUsage, PressureSample, update_pressure
from enforcer.status.pod_status import Seen
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, POD, holder, neighbour, quota
from tests.unit.enforcer.status.test_pod_status_files import seen, snapshot

USABLE = 16384 - 512
MINE = (CONTAINER, GPU)
ENDED = "2026-11-22T03:00:00Z"
FINISHED = 1795316400.0


def look(*views: GpuSnapshot, **changes: Any) -> Seen:
    return Seen.of(replace(snapshot(*views, quotas=(quota(), neighbour())), **changes))


def held(mine: int, theirs: int = 0, foreign: int = 0) -> Seen:
    rows = [holder(1, mine), holder(2, theirs, NEIGHBOUR, neighbour().pod_uid), holder(3, foreign, "e" * 64, "x")]
    return look(seen(*(row for row in rows if row.used_mib)))


def mark(**changes: Any) -> PressureSample:
    values: dict[str, Any] = {
        "quota": quota(), "since": FINISHED - 5, "last": FINISHED - 1, "own_mib": 4000, "others_mib": 0,
        "free_mib": 9000, "gpu_mib": USABLE,
    }  # fmt: skip
    return PressureSample(**(values | changes))


def failure(**changes: Any) -> Failure:
    values: dict[str, Any] = {"pod_uid": POD, "container_id": CONTAINER, "exit_code": 1, "finished": FINISHED}
    return Failure(**(values | changes))


def test_who_has_room_is_not_noted() -> None:
    assert update_pressure({}, held(3800, 3800), 1.0) == {}


def test_a_container_close_to_its_quota_is_noted_and_its_neighbour_is_not() -> None:
    found = update_pressure({}, held(3900, 3000), 1.0)
    assert found.keys() == {MINE}
    noted = found[MINE]
    assert (noted.own_mib, noted.others_mib, noted.free_mib) == (3900, 3000, USABLE - 6900)
    assert (noted.near_quota, noted.gpu_full) == (True, False)


def test_on_a_full_gpu_everybody_is_noted_also_who_holds_nothing_yet() -> None:
    found = update_pressure({}, held(0, 3000, 12500), 1.0)
    assert found.keys() == {MINE, (NEIGHBOUR, GPU)}
    assert (found[MINE].own_mib, found[MINE].others_mib) == (0, 15500)
    assert found[MINE].gpu_full
    assert found[MINE].holders == (ContainerUsage("process 3", 12500), ContainerUsage("asr/other-0/model", 3000))


def test_memory_that_nobody_seen_holds_fills_a_gpu_as_well() -> None:
    found = update_pressure({}, look(seen(holder(1, 100), beside=15700)), 1.0)
    assert found[MINE].others_mib == 15700
    assert found[MINE].holders[0] == ContainerUsage("nobody seen", 15700)


def test_a_blind_moment_notes_nothing_and_forgets_nothing() -> None:
    first = update_pressure({}, held(4000), 1.0)
    blind = look(GpuSnapshot(gpu=seen().gpu))
    assert update_pressure(first, blind, 2.0) == first


def test_what_it_held_when_it_died_is_kept_and_not_the_nothing_after() -> None:
    first = update_pressure({}, held(2000, 0, 13500), 10.0)
    after = update_pressure(first, held(0, 0, 15500), 11.0)
    assert after[MINE] == first[MINE]
    going_on = update_pressure(first, held(2100, 0, 13500), 11.0)
    assert (going_on[MINE].since, going_on[MINE].last, going_on[MINE].own_mib) == (10.0, 11.0, 2100)


def test_what_is_old_is_forgotten_and_there_is_never_too_much_of_it() -> None:
    first = update_pressure({}, held(4000), 10.0)
    assert update_pressure(first, held(0), 10.0 + KEPT_SECONDS) == first
    assert update_pressure(first, held(0), 11.0 + KEPT_SECONDS) == {}
    assert update_pressure(first, held(0), 9.0) == {}, "a wall clock that was set back"
    many = {(str(number), GPU): mark(last=float(number), quota=quota()) for number in range(KEPT + 50)}
    assert len(update_pressure(many, held(0), 100.0)) <= KEPT


def test_what_we_are_about_to_end_is_known_to_be_our_doing() -> None:
    acting = DetectorState(cases={key_of(quota()): ContainerState(used_mib=9000, phase=Phase.KILLING)})
    found = update_pressure({}, look(seen(holder(1, 9000)), state=acting), 5.0)
    assert found[MINE].ended == 5.0
    assert update_pressure(found, held(4000), 6.0)[MINE].ended == 5.0


def test_near_its_quota_it_failed_for_that() -> None:
    verdict = diagnose(failure(), [mark()])
    assert verdict is not None
    assert verdict[0] is Reason.QUOTA_REACHED
    words = diagnosis_message(failure(), *verdict)
    assert words.note == (
        f"container model failed with exit code 1, likely because it reached its quota: the container used 4000 MiB of "
        f"its 4096 MiB on {GPU}"
    )
    assert words.warning


def test_on_a_full_gpu_it_failed_for_what_others_held() -> None:
    verdict = diagnose(failure(exit_code=134), [mark(own_mib=1000, others_mib=14500, free_mib=372)])
    assert verdict is not None
    assert verdict[0] is Reason.GPU_FULL
    words = diagnosis_message(failure(exit_code=134), *verdict)
    assert words.note == (
        f"container model failed with exit code 134, likely because {GPU} was full: other processes used 14500 MiB, "
        "the container used 1000 MiB of its 4096 MiB"
    )


@pytest.mark.parametrize(
    ("own", "free", "reason"),
    [(4000, 10, Reason.GPU_FULL), (4090, 100, Reason.QUOTA_REACHED), (4000, 96, Reason.QUOTA_REACHED)],
    ids=["GPU tighter", "quota tighter", "alike"],
)
def test_where_both_are_short_the_tighter_one_counts(own: int, free: int, reason: Reason) -> None:
    verdict = diagnose(failure(), [mark(own_mib=own, free_mib=free)])
    assert verdict is not None
    assert verdict[0] is reason


def test_of_two_gpus_the_tighter_one_counts() -> None:
    there = mark(quota=quota(gpu=OTHER_GPU), own_mib=4095)
    assert diagnose(failure(), [mark(), there]) == (Reason.QUOTA_REACHED, there)


@pytest.mark.parametrize(
    "changes",
    [
        {"last": FINISHED - WITHIN - 1, "since": FINISHED - WITHIN - 9},
        {"since": FINISHED + SLACK + 1, "last": FINISHED + SLACK + 5},
        {"quota": neighbour()},
        {"ended": FINISHED - 3},
    ],
    ids=["long before", "only since", "another container", "our own doing"],
)
def test_what_has_nothing_to_do_with_it_is_not_blamed(changes: dict[str, Any]) -> None:
    assert diagnose(failure(), [mark()]) is not None
    assert diagnose(failure(), [mark(**changes)]) is None


def test_what_we_did_long_before_is_no_excuse() -> None:
    assert diagnose(failure(), [mark(ended=FINISHED - WITHIN - 1)]) is not None


@given(
    own=st.integers(0, 6000), free=st.integers(0, USABLE), others=st.integers(0, USABLE), gap=st.floats(-200, 200),
    code=st.integers(1, 255),
)  # fmt: skip
def test_a_cause_is_only_given_where_memory_was_short_and_names_only_its_own(
    own: int, free: int, others: int, gap: float, code: int
) -> None:
    noted = mark(own_mib=own, free_mib=free, others_mib=others, last=FINISHED - gap, since=FINISHED - gap - 1)
    if not (noted.near_quota or noted.gpu_full):
        return
    verdict = diagnose(failure(exit_code=code), [noted])
    if verdict is None:
        assert gap > WITHIN or gap < -SLACK - 1
        return
    reason, _ = verdict
    assert noted.near_quota if reason is Reason.QUOTA_REACHED else noted.gpu_full
    assert "likely" in diagnosis_message(failure(exit_code=code), *verdict).note


def status(state: dict[str, Any], name: str = "containerStatuses", key: str = "state") -> dict[str, Any]:
    return {"metadata": {"uid": POD}, "status": {name: [{"name": "model", key: {"terminated": state}}]}}


def ended(**changes: Any) -> dict[str, Any]:
    return {"containerID": f"containerd://{CONTAINER}", "exitCode": 1, "finishedAt": ENDED, "reason": "Error"} | changes


@pytest.mark.parametrize("key", ["state", "lastState"])
@pytest.mark.parametrize("name", ["containerStatuses", "initContainerStatuses"])
def test_a_container_that_ended_badly_failed(name: str, key: str) -> None:
    assert list(failures_of(status(ended(), name, key))) == [failure()]


@pytest.mark.parametrize(
    "changes",
    [
        {"exitCode": 0}, *({"exitCode": code} for code in sorted(FROM_OUTSIDE)), {"exitCode": None},
        {"reason": "OOMKilled", "exitCode": 1}, {"containerID": ""}, {"containerID": "containerd://x"},
        {"finishedAt": None}, {"finishedAt": "then"},
    ],
)  # fmt: skip
def test_what_ended_well_or_by_others_or_cannot_be_read_did_not_fail(changes: dict[str, Any]) -> None:
    assert list(failures_of(status(ended(**changes)))) == []


def test_in_a_pod_that_is_being_deleted_nothing_fails() -> None:
    pod = status(ended())
    pod["metadata"]["deletionTimestamp"] = ENDED
    assert list(failures_of(pod)) == []


def test_a_pod_without_a_status_is_fine() -> None:
    assert list(failures_of({"metadata": {"uid": POD}})) == []


@given(st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 6000), st.integers(0, 9000)), min_size=1, max_size=12))
def test_whatever_happens_a_mark_says_what_its_look_saw(looks: list[tuple[int, int, int]]) -> None:
    marks: dict[tuple[str, str], PressureSample] = {}
    for second, amounts in enumerate(looks):
        marks = update_pressure(marks, held(*amounts), float(second))
    for noted in marks.values():
        assert noted.near_quota or noted.gpu_full
        assert noted.since <= noted.last < len(looks)
        mine, theirs, foreign = looks[int(noted.last)]
        assert noted.own_mib == (mine if noted.quota.container_id == CONTAINER else theirs)
        assert noted.own_mib + noted.others_mib == mine + theirs + foreign


def test_a_container_that_was_given_nothing_was_refused_nothing_and_is_named_to_others() -> None:
    full = look(seen(holder(2, 15500, NEIGHBOUR, neighbour().pod_uid)), quotas=(quota(), neighbour(memory_mib=0)))
    found = update_pressure({}, full, 1.0)
    assert found.keys() == {MINE}
    assert found[MINE].holders == (ContainerUsage("asr/other-0/model", 15500),)
