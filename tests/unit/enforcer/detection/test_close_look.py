"""A GPU on which a kill may come is read every 80 ms; the others, and their containers, do not notice."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.detection.budget import Account
from enforcer.detection.close_look import SECONDS, gpus_to_watch
from enforcer.detection.detector import evaluate
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, Phase
from enforcer.quota.types import OnExceed
from tests.unit.enforcer.made import CONTAINER, GPU, OTHER_GPU, holder, neighbour, quota

RULES = DetectorConfig()
OVER = {CONTAINER: (holder(10, 5000),)}
WITHIN: dict[str, Any] = {CONTAINER: (holder(10, 4000),)}


def after(*samples: tuple[float, dict[str, Any]], **changes: Any) -> tuple[DetectorState, Any]:
    """The state after samples of one GPU, each at its second."""
    mine, state = quota(**changes), DetectorState()
    for now, reading in samples:
        state, _ = evaluate(state, [mine], {GPU: reading}, now, RULES)
    return state, mine


def test_without_a_grace_period_the_gpu_is_watched_from_the_first_sample_over_quota() -> None:
    state, mine = after((0.0, OVER), grace_seconds=0.0)
    assert gpus_to_watch(state, [mine], 0.0, 0.5, RULES) == {GPU}
    state, mine = after((0.0, WITHIN), grace_seconds=0.1)
    assert gpus_to_watch(state, [mine], 0.0, 0.5, RULES) == frozenset()


def test_with_one_it_is_watched_when_the_rest_of_it_ends_before_the_next_sample() -> None:
    samples = [(at / 2, OVER) for at in range(10)]
    state, mine = after(*samples, grace_seconds=5.0)
    assert gpus_to_watch(state, [mine], 4.5, 0.4, RULES) == frozenset(), "half a second is left"
    assert gpus_to_watch(state, [mine], 4.5, 0.6, RULES) == {GPU}


@pytest.mark.parametrize("spared", ["warn", "kill under way", "rate limited", "killed just now", "breaker"])
def test_what_is_spared_for_long_is_left_to_the_regular_samples(spared: str) -> None:
    state, mine = after((0.0, OVER), grace_seconds=0.0, on_exceed=OnExceed.WARN if spared == "warn" else OnExceed.KILL)
    (key,) = state.cases
    case = state.cases[key]
    changed = {
        "warn": state,
        "kill under way": replace(state, cases={key: replace(case, phase=Phase.KILLING)}),
        "rate limited": replace(state, cases={key: replace(case, phase=Phase.POSTPONED)}),
        "killed just now": replace(state, cases={key: replace(case, spared_until=1.0)}),
        "breaker": replace(state, open=True),
    }[spared]
    assert gpus_to_watch(changed, [mine], 0.0, 0.5, RULES) == frozenset()


def test_the_third_sample_kills_50_ms_after_the_second() -> None:
    mine, state, found = quota(grace_seconds=0.0), DetectorState(), []
    for number in range(3):
        state, decisions = evaluate(state, [mine], {GPU: OVER}, number * SECONDS, RULES, only={GPU})
        found.append([each.decision for each in decisions])
    assert Decision.KILL in found[2]
    assert Decision.KILL not in [*found[0], *found[1]]


@given(st.lists(st.sampled_from([4000, 4500, 5000]), min_size=1, max_size=12), st.booleans())
def test_containers_on_other_gpus_are_as_they_were(amounts: list[int], both: bool) -> None:  # noqa: FBT001 - drawn
    """Whatever the close looks see: no sample and no second of another GPU's container changes."""
    mine = quota(grace_seconds=1.0)
    other = neighbour(gpu=OTHER_GPU, grace_seconds=1.0) if both else quota(gpu=OTHER_GPU, grace_seconds=1.0)
    quotas, identity = [mine, other], other.container_id or ""
    pod = other.pod_uid
    readings = {GPU: OVER, OTHER_GPU: {identity: (holder(20, 5000, identity, pod),)}}
    state, _ = evaluate(DetectorState(), quotas, readings, 0.0, RULES)
    before = state
    for number, mib in enumerate(amounts, 1):
        reading = {CONTAINER: (holder(10, mib),)}
        state, decisions = evaluate(state, quotas, {GPU: reading}, number * SECONDS, RULES, only={GPU})
        assert all(each.quota is mine for each in decisions)
    assert state.of(other) == before.of(other)
    later, _ = evaluate(state, quotas, readings | {GPU: WITHIN}, 0.9, RULES)
    plain, _ = evaluate(before, quotas, readings | {GPU: WITHIN}, 0.9, RULES)
    assert later.of(other) == plain.of(other)


def test_seconds_over_quota_do_not_depend_on_how_often_is_looked() -> None:
    close, mine = after(*((number * SECONDS, OVER) for number in range(26)), grace_seconds=30.0)
    seldom, _ = after((0.0, OVER), (1.0, OVER), (2.0, OVER), grace_seconds=30.0)
    assert close.of(mine).over_for == pytest.approx(seldom.of(mine).over_for)
    assert close.of(mine).used == pytest.approx(seldom.of(mine).used)


def test_a_gpu_is_watched_while_a_namespace_has_no_budget_there() -> None:
    state, mine = after((0.0, WITHIN))
    account = Account(used=5.5, at=0.0, size=5.0)
    assert gpus_to_watch(replace(state, accounts={("asr", GPU): account}), [mine], 0.0, 0.5, RULES) == {GPU}
    assert gpus_to_watch(replace(state, accounts={("asr", GPU): account}), [mine], 13.0, 0.5, RULES) == frozenset()
    assert gpus_to_watch(replace(state, accounts={("tts", GPU): account}), [mine], 0.0, 0.5, RULES) == frozenset()
