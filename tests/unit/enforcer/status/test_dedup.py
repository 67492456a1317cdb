from dataclasses import replace

import pytest

from enforcer.detection.types import Decision, KillDecision
from enforcer.status.dedup import FIRST, QUIET, EventDeduplicator, Repetition
from enforcer.status.messages import DECIDED
from tests.unit.enforcer.made import OTHER_GPU, neighbour, quota


def decided(decision: Decision, **changes: object) -> KillDecision:
    return KillDecision(decision=decision, quota=quota(**changes), used_mib=5000, kill_in=4.0)


WARNED, BACK = decided(Decision.WARNED), decided(Decision.BACK_UNDER)


def test_the_first_warning_and_its_end_are_reported_the_next_ones_counted_until_it_was_quiet_for_long_enough() -> None:
    episodes, reported = EventDeduplicator(), []
    for second in range(0, 1200, 4):
        for each, after in ((WARNED, 0), (BACK, 2)):
            if (spell := episodes.register(each, second + after)) is not None:
                reported.append((second + after, each.decision, spell))
    warnings = [(second, spell) for second, decision, spell in reported if decision is Decision.WARNED]
    again = Repetition(76, QUIET)
    assert warnings == [(0, FIRST), (300, again), (600, again), (900, again)]
    assert [second for second, decision, _ in reported if decision is Decision.BACK_UNDER] == [2, 302, 602, 902]


def test_who_was_notified_that_nothing_is_done_is_reported_when_that_changes() -> None:
    episodes, lenient = EventDeduplicator(), replace(WARNED, kill_in=None)
    assert [episodes.register(each, 0.0) for each in (lenient, lenient)] == [FIRST, None]
    assert [episodes.register(each, 1.0) for each in (WARNED, WARNED)] == [FIRST, None]
    assert episodes.register(lenient, 2.0) is None


def test_one_that_had_been_good_for_twice_as_long_starts_from_one() -> None:
    episodes = EventDeduplicator()
    assert episodes.register(WARNED, 0.0) == FIRST
    assert episodes.register(WARNED, QUIET - 1) is None
    assert episodes.register(WARNED, 2 * QUIET) == FIRST


@pytest.mark.parametrize(
    "other",
    [
        {"container": "another"},
        {"pod_uid": neighbour().pod_uid},
        {"gpu": OTHER_GPU},
    ],
    ids=["container", "pod", "gpu"],
)
def test_nobody_is_silenced_by_another(other: dict[str, object]) -> None:
    episodes = EventDeduplicator()
    assert episodes.register(WARNED, 0.0) == FIRST
    assert episodes.register(decided(Decision.WARNED, **other), 1.0) == FIRST
    assert episodes.register(decided(Decision.WARNED, container_id="f" * 64), 2.0) is None, "a restart is no other one"


@pytest.mark.parametrize("decision", [Decision.RATE_LIMITED, Decision.BREAKER_OPEN, Decision.LENT])
def test_that_it_is_let_be_is_reported_once_as_well_and_whatever_else_was(decision: Decision) -> None:
    episodes = EventDeduplicator()
    assert episodes.register(WARNED, 0.0) == FIRST
    assert [episodes.register(decided(decision), 1.0 + n) for n in range(3)] == [FIRST, None, None]


def test_what_comes_after_an_attempt_to_end_it_is_reported_again() -> None:
    episodes = EventDeduplicator()
    assert episodes.register(WARNED, 0.0) == FIRST
    assert episodes.register(WARNED, 1.0) is None
    assert episodes.register(decided(Decision.KILL), 2.0) == FIRST
    assert episodes.register(WARNED, 3.0) == FIRST


def test_an_end_is_reported_where_the_warning_was_an_earlier_enforcers() -> None:
    assert EventDeduplicator().register(BACK, 0.0) == FIRST


def test_who_is_gone_is_forgotten() -> None:
    episodes = EventDeduplicator()
    for number in range(10_000):
        episodes.register(decided(Decision.WARNED, pod_uid=f"pod-{number}"), float(number))
    assert len(episodes._sent) <= 2 * QUIET


@pytest.mark.parametrize(
    ("spell", "words"),
    [
        (FIRST, ""),
        (Repetition(2, 310.0), ", for the 2nd time in 5 min"),
        (Repetition(11, 300.0), ", for the 11th time in 5 min"),
        (Repetition(121, 599.0), ", for the 121st time in 10 min"),
        (Repetition(3, 1.0), ", for the 3rd time in 1 min"),
    ],
)
def test_how_often_is_reported_in_words(spell: Repetition, words: str) -> None:
    assert spell.words == words
    assert DECIDED[Decision.WARNED](WARNED, spell).note == (
        f"container model holds 5000 MiB of its 4096 MiB on {quota().gpu}{words}; "
        "the enforcer kills its processes in 4.0s unless it frees 904 MiB"
    )
