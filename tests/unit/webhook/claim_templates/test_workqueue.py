"""Whose turn it is to be written, and when again."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from webhook.claim_templates.references import Key
from webhook.claim_templates.workqueue import (
    AT_ONCE,
    MAX_RETRY_SECONDS,
    PROBE_SECONDS,
    RETRY_SECONDS,
    Outcome,
    WriteQueue,
)

A: Key = ("team", "a")
B: Key = ("team", "b")


def many(count: int) -> list[Key]:
    return [("team", f"{number:04}") for number in range(count)]


def wanting(*keys: Key) -> WriteQueue:
    queue = WriteQueue()
    for key in keys:
        queue.add(key)
    return queue


def test_each_is_given_out_once_at_a_time_and_in_order() -> None:
    queue = wanting(B, A, B)

    assert queue.get(0.0) == [B, A]
    assert queue.get(100.0) == []


def test_what_is_not_wanted_any_more_is_not_given_out() -> None:
    queue = wanting(A, B)
    queue.discard(A)

    assert queue.get(0.0) == [B]
    assert len(queue) == 1


def test_what_is_not_confirmed_is_tried_again_with_ever_longer_pauses() -> None:
    queue, now, pauses = wanting(A), 0.0, []
    for _ in range(8):
        assert queue.get(now) == [A]
        queue.done(A, now, Outcome.ANSWERED)
        pauses.append(queue.next(now))
        assert queue.get(now + pauses[-1] - 0.01) == []
        now += pauses[-1]

    assert pauses == [RETRY_SECONDS * each for each in (1, 2, 4, 8, 16)] + [MAX_RETRY_SECONDS] * 3


def test_one_that_was_dropped_begins_again() -> None:
    queue = wanting(A)
    queue.get(0.0)
    queue.done(A, 0.0, Outcome.ANSWERED)
    queue.discard(A)
    queue.add(A)

    assert queue.get(0.1) == [A]


def test_one_that_is_wanted_again_while_it_is_written_is_written_again_at_once() -> None:
    queue = wanting(A)
    queue.get(0.0)
    queue.discard(A)
    queue.add(A)
    assert queue.get(0.0) == [], "one call at a time"

    queue.done(A, 0.0, Outcome.ANSWERED)
    assert queue.get(0.0) == [A]


def test_no_more_are_given_out_than_can_be_written_soon() -> None:
    queue = wanting(*many(AT_ONCE + 5))
    first = queue.get(0.0)
    assert first == many(AT_ONCE)
    assert queue.get(0.0) == []
    assert queue.next(0.0) == float("inf")

    queue.done(first[0], 0.0, Outcome.ANSWERED)
    assert len(queue.get(0.0)) == 1


def test_while_nobody_answers_one_is_tried_now_and_then() -> None:
    queue = wanting(*many(10))
    for key in queue.get(0.0):
        queue.done(key, 0.0, Outcome.UNAVAILABLE)
    assert queue.get(PROBE_SECONDS - 0.01) == []
    assert queue.next(0.0) == PROBE_SECONDS

    tried = queue.get(PROBE_SECONDS)
    assert len(tried) == 1
    assert queue.get(PROBE_SECONDS) == []
    assert len(queue.get(2 * PROBE_SECONDS)) == 1, "one that hangs does not keep the others from finding out"


def test_the_first_answer_lets_all_the_others_go() -> None:
    queue = wanting(*many(10))
    for key in queue.get(0.0):
        queue.done(key, 0.0, Outcome.UNAVAILABLE)
    (tried,) = queue.get(PROBE_SECONDS)
    queue.done(tried, PROBE_SECONDS, Outcome.ANSWERED)

    assert len(queue.get(PROBE_SECONDS)) == 9


def test_one_never_tried_does_not_stand_behind_those_that_fail() -> None:
    queue = wanting(*many(10))
    for key in queue.get(0.0):
        queue.done(key, 0.0, Outcome.UNAVAILABLE)
    queue.add(A)

    assert queue.get(PROBE_SECONDS) == [A]


def test_one_that_there_was_nothing_to_do_for_says_nothing_about_the_api_server() -> None:
    queue = wanting(A, B)
    queue.get(0.0)
    queue.done(A, 0.0, Outcome.UNAVAILABLE)
    queue.done(B, 0.0, Outcome.NOT_TRIED)

    assert queue.get(0.1) == []
    assert len(queue) == 2


class Sequences(RuleBasedStateMachine):
    """Whatever happens in whatever order: what is wanted has its turn, and nothing else is kept."""

    KEYS = st.sampled_from(many(4))

    def __init__(self) -> None:
        super().__init__()
        self.queue, self.now = WriteQueue(), 0.0
        self.wanted: set[Key] = set()
        self.out: list[Key] = []

    @rule(key=KEYS)
    def want(self, key: Key) -> None:
        self.wanted.add(key)
        self.queue.add(key)

    @rule(key=KEYS)
    def drop(self, key: Key) -> None:
        self.wanted.discard(key)
        self.queue.discard(key)

    @rule(seconds=st.sampled_from([0.0, 0.4, 1.0, 40.0]))
    def take(self, seconds: float) -> None:
        self.now += seconds
        taken = self.queue.get(self.now)
        assert set(taken) <= self.wanted
        assert not set(taken) & set(self.out)
        self.out += taken

    @precondition(lambda self: self.out)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def done(self, data: st.DataObject, outcome: Outcome) -> None:
        key = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.queue.done(key, self.now, outcome)

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) == len(self.wanted)

    def teardown(self) -> None:
        for key in self.out:
            self.queue.done(key, self.now, Outcome.ANSWERED)
        seen: set[Key] = set()
        for _ in range(2):
            self.now += MAX_RETRY_SECONDS + PROBE_SECONDS
            for key in self.queue.get(self.now):
                seen.add(key)
                self.queue.done(key, self.now, Outcome.ANSWERED)
        assert seen == self.wanted, "each is tried within the longest pause"
        for key in self.wanted:
            self.queue.discard(key)
        self.queue.get(self.now + MAX_RETRY_SECONDS)
        assert {name for name, value in vars(self.queue).items() if value} <= {"_probe"}


Sequences.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSequences = Sequences.TestCase
