from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.judge import Case, Decision, Rules, State, judge, settle
from enforcer.memory import decode, encode
from tests.unit.enforcer.made import CONTAINER, GPU, holder, quota

BOOT = "0b7f"
OVER = {GPU: {CONTAINER: (holder(10, 9000),)}}


def restarted(state: State, now: float) -> State:
    found = decode(encode(state, BOOT), BOOT, now)
    assert found is not None
    return found


def test_what_matters_is_kept_and_what_does_not_is_not() -> None:
    state = State(
        cases={(CONTAINER, GPU): Case(used_mib=9, samples=5, over_for=2.0, last=9.0, warned=True, acting=True),
               ("d" * 64, GPU): Case(used_mib=5)},
        kills=(3.0, 4.0), cooling={("uid", "model"): 20.0},
    )  # fmt: skip
    found = restarted(state, 10.0)
    assert found.cases == {(CONTAINER, GPU): Case(over_for=2.0, last=9.0, warned=True)}
    assert (found.kills, found.cooling) == (state.kills, state.cooling)


@pytest.mark.parametrize("every", [3, 4, 7, 13])
def test_restarts_neither_shorten_nor_stretch_the_grace_period(every: int) -> None:
    """A restart loses the three samples it takes to believe, and not a second of grace."""
    state, now, allowed = State(), 1000.0, (quota(grace_seconds=30.0),)
    for look in range(200):
        if look % every == 0:
            state = restarted(state, now)
        now += 0.5
        state, said = judge(state, allowed, OVER, now, Rules())
        if any(verdict.decision is Decision.KILL for verdict in said):
            assert 1030.5 <= now <= 1030.5 + 3 * 0.5
            return
    pytest.fail("a restart loop is a free ride")


def test_a_cool_down_outlives_a_restart() -> None:
    state = settle(State(), quota(), 1000.0, Rules(), acted=True)
    state, now = restarted(state, 1001.0), 1001.0
    while now < 1000 + Rules().cool_down:
        state, said = judge(state, (quota(grace_seconds=0.0),), OVER, now, Rules())
        assert all(verdict.decision is not Decision.KILL for verdict in said)
        now += 0.5


def test_another_boot_remembers_nothing() -> None:
    assert decode(encode(State(kills=(1.0,)), BOOT), "another", 5.0) is None


def test_a_time_that_lies_ahead_is_cut_to_now() -> None:
    state = State(cases={(CONTAINER, GPU): Case(samples=1, last=1e9)}, kills=(1e9,))
    found = restarted(state, 10.0)
    assert found.cases[CONTAINER, GPU].last == 10.0
    assert found.kills == (10.0,)


@pytest.mark.parametrize(
    "change",
    [(b"[]", b"5"), (b'"overFor": 2.0', b'"overFor": "2"'), (b'"overFor": 2.0', b'"overFor": NaN'), (b"2.0", b"-2.0"),
     (b'"version": 1', b'"version": 2'), (b'"gpu"', b'"gpus"'), (b'"last": 9.0', b'"last": true')],
    ids=str,
)  # fmt: skip
def test_a_file_that_is_not_ours_is_not_believed(change: tuple[bytes, bytes]) -> None:
    data = encode(State(cases={(CONTAINER, GPU): Case(samples=1, over_for=2.0, last=9.0)}), BOOT)
    assert change[0] in data
    assert decode(data.replace(*change), BOOT, 10.0) is None


@given(st.binary(max_size=300))
def test_rubbish_is_no_accident(data: bytes) -> None:
    assert decode(data, BOOT, 10.0) is None


def test_a_truncated_file_is_no_accident() -> None:
    data = encode(replace(State(), kills=(1.0,)), BOOT)
    assert [decode(data[:size], BOOT, 10.0) for size in range(len(data) - 2)] == [None] * (len(data) - 2)
