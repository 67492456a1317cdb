from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.detection.budget import Account
from enforcer.detection.detector import evaluate, record_kill_result
from enforcer.detection.state_file import decode, encode
from enforcer.detection.types import ContainerState, Decision, DetectorConfig, DetectorState, Key, Phase, key_of
from tests.unit.enforcer.made import CONTAINER, GPU, holder, quota

BOOT = "0b7f"
KEY = key_of(quota())
OTHER: Key = (("uid", "other"), GPU)
OVER = {GPU: {CONTAINER: (holder(10, 9000),)}}
VIOLATION = ContainerState(phase=Phase.WARNED, samples=3, over_for=2.0, used=2.5, at=9.0)
FULL = DetectorState(
    cases={
        KEY: replace(VIOLATION, killed=True, spared_until=10.5, threshold_mib=4096, lowered=7.0),
        OTHER: ContainerState(used=0.5, at=5.0),
    },
    accounts={("asr", GPU): Account(used=1.5, at=9.0, size=5.0, over=True), ("", GPU): Account(used=0.5, size=5.0)},
    sampled={GPU: 9.0}, blind=frozenset({GPU}), kills={("uid", "model"): 3.0},
)  # fmt: skip


def restarted(state: DetectorState, now: float) -> DetectorState:
    found = decode(encode(state, BOOT), BOOT, now)
    assert found is not None
    return found


def test_all_is_kept_but_what_every_sample_tells() -> None:
    held = replace(FULL, cases={key: replace(case, used_mib=5) for key, case in FULL.cases.items()})
    assert restarted(held, 10.0) == FULL


def test_when_a_gpu_was_read_last_is_kept_only_while_somebody_is_over() -> None:
    """Else the file would be written with each sample."""
    calm = replace(FULL, cases={OTHER: FULL.cases[OTHER]})
    assert restarted(calm, 10.0) == replace(calm, sampled={}, blind=frozenset())


def test_a_time_that_lies_ahead_is_cut() -> None:
    late = ContainerState(phase=Phase.OVER, at=1e9, lowered=1e9, spared_until=1e9)
    account, kills = Account(used=1.0, at=1e9), {("u", "c"): 1e9}
    state = DetectorState(cases={KEY: late}, accounts={("a", GPU): account}, sampled={GPU: 1e9}, kills=kills)
    assert restarted(state, 10.0) == DetectorState(
        cases={KEY: replace(late, at=10.0, lowered=10.0, spared_until=10.0 + DetectorConfig().cool_down)},
        accounts={("a", GPU): replace(account, at=10.0)}, sampled={GPU: 10.0}, kills={("u", "c"): 10.0},
    )  # fmt: skip


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


def after_away(seconds: float) -> list[Decision]:
    """What is decided with the first sample after so many seconds away, of a container that used 4.9 s of 5 s."""
    case = replace(VIOLATION, samples=2, phase=Phase.OVER, used=5.4, at=1000.0)
    state = DetectorState(cases={KEY: case}, sampled={GPU: 1000.0})
    now = 1000.0 + seconds
    return [each.decision for each in evaluate(restarted(state, now), (quota(),), OVER, now, DetectorConfig())[1]]


def test_after_a_restart_one_fresh_sample_is_enough_and_after_a_long_one_it_is_the_first() -> None:
    assert after_away(4.0) == [Decision.WARNED, Decision.KILL]
    assert after_away(10.5) == [Decision.GRACE_STARTED]


def test_a_kill_that_an_enforcer_died_over_is_decided_again_at_once() -> None:
    case = replace(VIOLATION, samples=9, used=9.0, at=1000.0)
    first = DetectorState(cases={KEY: case}, sampled={GPU: 1000.0})
    state, decisions = evaluate(first, (quota(),), OVER, 1000.5, DetectorConfig())
    assert [decision.decision for decision in decisions] == [Decision.KILL]
    state, decisions = evaluate(restarted(state, 1002.0), (quota(),), OVER, 1002.0, DetectorConfig())
    assert decisions[-1].decision is Decision.KILL
    assert len(state.kills) == 1


def test_a_pause_outlives_a_restart() -> None:
    state = record_kill_result(DetectorState(), quota(), 1000.0, DetectorConfig(), acted=False)
    state, now = restarted(state, 1001.0), 1001.0
    while now < 1000 + DetectorConfig().cool_down:
        state, decisions = evaluate(state, (quota(grace_seconds=0.0),), OVER, now, DetectorConfig())
        assert all(decision.decision is not Decision.KILL for decision in decisions)
        now += 0.5


def test_another_boot_remembers_nothing() -> None:
    assert decode(encode(FULL, BOOT), "another", 5.0) is None


@pytest.mark.parametrize(
    "change",
    [
        (b"[]", b"5"), (b'"overFor": 2.0', b'"overFor": "2"'), (b'"overFor": 2.0', b'"overFor": true'),
        (b'"overFor": 2.0', b'"overFor": NaN'),
        (b'"overFor": 2.0', b'"overFor": -2.0'),
        (b'"overFor": 2.0', b'"overFor": 9.5'), (b'"used": 2.5', b'"used": 9.5'),
        (b'"version": 5', b'"version": 4'), (b'"gpu"', b'"gpus"'),
        (b'"at": 9.0', b'"at": true'), (b'"samples": 3', b'"samples": 3.0'), (b'"samples": 3', b'"samples": -3'),
        (b'"state": "Warned"', b'"state": "Angry"'), (b'"thresholdMib": null', b'"thresholdMib": "7"'),
        (b'"blind": []', b'"blind": [7]'), (b'"sampled": {', b'"sampled": {"x": "y", '),
        (b'"podUid": "', b'"podUid": 7, "x": "'),
    ],
    ids=str,
)  # fmt: skip
def test_a_file_that_is_not_ours_is_not_believed(change: tuple[bytes, bytes]) -> None:
    data = encode(DetectorState(cases={KEY: VIOLATION}, sampled={GPU: 9.0}), BOOT)
    assert change[0] in data
    assert decode(data.replace(*change), BOOT, 10.0) is None


@given(st.binary(max_size=300))
def test_rubbish_is_no_accident(data: bytes) -> None:
    assert decode(data, BOOT, 10.0) is None


def test_a_truncated_file_is_no_accident() -> None:
    data = encode(FULL, BOOT)
    assert [decode(data[:size], BOOT, 10.0) for size in range(len(data) - 2)] == [None] * (len(data) - 2)
