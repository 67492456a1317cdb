from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.detection.debt import Debt
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.doubt import Threshold
from enforcer.detection.kill_history import RecentKill
from enforcer.detection.state_file import decode, encode
from enforcer.detection.storm import Opening
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, ViolationState
from tests.unit.enforcer.made import CONTAINER, GPU, holder, quota

BOOT = "0b7f"
OVER = {GPU: {CONTAINER: (holder(10, 9000),)}}


def restarted(state: DetectorState, now: float) -> DetectorState:
    found = decode(encode(state, BOOT), BOOT, now)
    assert found is not None
    return found


KILLS = (RecentKill(3.0, "asr", ("uid", "model")), RecentKill(4.0, "tts", ("other", "voice")))


def test_what_matters_is_kept_and_what_does_not_is_not() -> None:
    kept = ViolationState(samples=5, over_for=2.0, last=9.0, warned=True, blind=True, lenient=True, cgroup_inode=7)
    state = DetectorState(
        cases={(CONTAINER, GPU): replace(kept, used_mib=9, acting=True), ("d" * 64, GPU): ViolationState(used_mib=5)},
        kills=(*KILLS, replace(KILLS[0], free=True)), cooling={("uid", "model"): 20.0},
        debts={
            (("uid", "model"), GPU): Debt(seconds=4.5, at=9.0, samples=7, rate=0.5, paused=True, killed=8.0),
            (("uid", "other"), GPU): Debt(seconds=0.5, at=7.0, samples=1, warned=True),
        },
        opening=Opening(by=frozenset({KILLS[0].tenant}), pods=frozenset({"uid", "z"}), calm=9.5),
        trips={KILLS[0].tenant: 3.0}, ended=KILLS[1:], within={("uid", "model"): 4.0},
        thresholds={(("uid", "model"), GPU): Threshold(4352, 7.0), (("uid", "other"), GPU): Threshold(0)},
    )  # fmt: skip
    found = restarted(state, 10.0)
    assert found == replace(state, cases={(CONTAINER, GPU): kept})
    for opening in (None, Opening(by=frozenset(), pods=frozenset())):
        assert restarted(replace(state, opening=opening), 10.0).opening == opening


def test_a_debt_from_the_future_is_of_now() -> None:
    debt, opening = Debt(seconds=4.5, at=1e9, killed=1e9), Opening(by=frozenset(), pods=frozenset(), calm=1e9)
    state = DetectorState(debts={(("uid", "model"), GPU): debt}, opening=opening, trips={KILLS[0].tenant: 1e9})
    found = restarted(state, 10.0)
    assert found.debts == {(("uid", "model"), GPU): replace(debt, at=10.0, killed=10.0)}
    assert (found.opening, found.trips) == (replace(opening, calm=10.0), {KILLS[0].tenant: 10.0})


@pytest.mark.parametrize("away", [0.0, 2.0, 9.5], ids=str)
@pytest.mark.parametrize("every", [1, 2, 4, 13])
def test_restarts_neither_shorten_nor_stretch_the_grace_period(every: int, away: float) -> None:
    """A restart loses nothing: what was seen before counts, and the time between, while that is no more than 10 s."""
    state, now, begun, allowed = DetectorState(), 1000.0, 0.0, (quota(grace_seconds=30.0),)
    for look in range(200):
        if look % every == 0:
            now += away
            state = restarted(state, now)
        now += 0.5
        begun = begun or now
        state, decisions = evaluate(state, allowed, OVER, now, DetectorConfig())
        if any(decision.decision is Decision.KILL for decision in decisions):
            assert begun + 30.0 <= now <= begun + 30.0 + 0.5 + away
            return
    pytest.fail("a restart loop is a free ride")


def test_after_a_restart_one_fresh_sample_is_enough() -> None:
    state = DetectorState(
        cases={(CONTAINER, GPU): ViolationState(samples=2, over_for=1.0, last=1000.0, cgroup_inode=7)}
    )
    _, decisions = evaluate(restarted(state, 1004.0), (quota(),), OVER, 1004.0, DetectorConfig())
    assert [decision.decision for decision in decisions] == [Decision.WARNED, Decision.KILL]


@pytest.mark.parametrize(("away", "inode"), [(10.5, 7), (1.0, 8)], ids=["too long ago", "another cgroup"])
def test_what_is_no_longer_known_to_be_the_same_has_its_full_grace(away: float, inode: int) -> None:
    state = DetectorState(
        cases={(CONTAINER, GPU): ViolationState(samples=9, over_for=4.5, last=1000.0, cgroup_inode=inode)}
    )
    state, decisions = evaluate(restarted(state, 1000.0 + away), (quota(),), OVER, 1000.0 + away, DetectorConfig())
    assert [decision.decision for decision in decisions] == [Decision.GRACE_STARTED]
    assert state.cases[CONTAINER, GPU].over_for == 0.0


def test_a_kill_that_an_enforcer_died_over_is_decided_again_at_once() -> None:
    case = ViolationState(samples=9, over_for=9.0, last=1000.0, warned=True, cgroup_inode=7)
    state, decisions = evaluate(
        DetectorState(cases={(CONTAINER, GPU): case}), (quota(),), OVER, 1000.5, DetectorConfig()
    )
    assert [decision.decision for decision in decisions] == [Decision.KILL]
    state, decisions = evaluate(restarted(state, 1002.0), (quota(),), OVER, 1002.0, DetectorConfig())
    assert [decision.decision for decision in decisions] == [Decision.KILL]
    assert len(state.kills) == 2, "and counts twice"


def test_a_cool_down_outlives_a_restart() -> None:
    state = record_kill_result(DetectorState(), quota(), 1000.0, DetectorConfig(), acted=False)
    state, now = restarted(state, 1001.0), 1001.0
    while now < 1000 + DetectorConfig().cool_down:
        state, decisions = evaluate(state, (quota(grace_seconds=0.0),), OVER, now, DetectorConfig())
        assert all(decision.decision is not Decision.KILL for decision in decisions)
        now += 0.5


def test_another_boot_remembers_nothing() -> None:
    assert decode(encode(DetectorState(kills=KILLS), BOOT), "another", 5.0) is None


def test_a_time_that_lies_ahead_is_cut_to_now() -> None:
    state = DetectorState(
        cases={(CONTAINER, GPU): ViolationState(samples=1, last=1e9)}, kills=(replace(KILLS[0], at=1e9),)
    )
    found = restarted(state, 10.0)
    assert found.cases[CONTAINER, GPU].last == 10.0
    assert [kill.at for kill in found.kills] == [10.0]


@pytest.mark.parametrize(
    "change",
    [
        (b"[]", b"5"), (b'"overFor": 2.0', b'"overFor": "2"'), (b'"overFor": 2.0', b'"overFor": NaN'),
        (b'"overFor": 2.0', b'"overFor": -2.0'), (b'"version": 4', b'"version": 3'), (b'"gpu"', b'"gpus"'),
        (b'"last": 9.0', b'"last": true'), (b'"last": 9.0', b'"last": 1.0'), (b'"samples": 1', b'"samples": 0'),
        (b'"samples": 1', b'"samples": 1.0'), (b'"cgroupInode": null', b'"cgroupInode": "7"'),
        (b'"cgroupInode": null', b'"cgroupInode": -1'), (b'"overFor": 2.0', b'"overFor": false'),
    ],
    ids=str,
)  # fmt: skip
def test_a_file_that_is_not_ours_is_not_believed(change: tuple[bytes, bytes]) -> None:
    data = encode(DetectorState(cases={(CONTAINER, GPU): ViolationState(samples=1, over_for=2.0, last=9.0)}), BOOT)
    assert change[0] in data
    assert decode(data.replace(*change), BOOT, 10.0) is None


@pytest.mark.parametrize("pods", [b"[7]", b'"uid"', b'{"uid": 7}'], ids=str)
def test_pods_that_are_no_list_of_texts_are_not_believed(pods: bytes) -> None:
    data = encode(DetectorState(opening=Opening(by=frozenset(), pods=frozenset({"uid"}))), BOOT)
    assert b'["uid"]' in data
    assert decode(data.replace(b'["uid"]', pods), BOOT, 10.0) is None


@given(st.binary(max_size=300))
def test_rubbish_is_no_accident(data: bytes) -> None:
    assert decode(data, BOOT, 10.0) is None


def test_a_truncated_file_is_no_accident() -> None:
    data = encode(DetectorState(kills=KILLS), BOOT)
    assert [decode(data[:size], BOOT, 10.0) for size in range(len(data) - 2)] == [None] * (len(data) - 2)


def test_numbers_at_their_bounds_are_read() -> None:
    case = ViolationState(samples=1, over_for=9.0, last=9.0, cgroup_inode=0)
    kept = DetectorState(
        cases={(CONTAINER, GPU): case},
        kills=(RecentKill(0.0, "asr", ("uid", "model")),),
        cooling={("u", "c"): 0.0},
        within={},
    )
    assert restarted(kept, 9.0) == kept
