"""Whose review comes next: each sender gets the same share."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import reviews
from webhook.serving.fair_queue import LEAST_BYTES, LONGEST_NAME, MOST_SENDERS, FairQueue, sender_of

LARGE = 7 * 1024 * 1024
SENDERS = st.sampled_from([b"a", b"b", b"c"])
ADDED = st.tuples(SENDERS, st.integers(0, LARGE))


@given(st.lists(st.one_of(ADDED, st.none()), max_size=60))
def test_who_waits_has_got_as_much_as_anybody_else_but_for_one_review(story: list[tuple[bytes, int] | None]) -> None:
    """``None`` takes one. ``got``: bytes that others got since a sender has waited, and that it got itself."""
    queue, waiting = FairQueue[tuple[bytes, int, int]](), list[tuple[bytes, int, int]]()
    got = dict[bytes, Counter[bytes]]()
    for number, each in enumerate([*story, *[None] * len(story)]):
        if each is not None:
            item = (*each, number)
            queue.add(each[0], each[1], item)
            waiting.append(item)
            got.setdefault(each[0], Counter())
        elif queue:
            taken = queue.take()
            assert taken == next(one for one in waiting if one[0] == taken[0]), "of one sender in their order"
            waiting.remove(taken)
            got = {sender: got[sender] for sender, _, _ in waiting}
            for counted in got.values():
                counted[taken[0]] += max(taken[1], LEAST_BYTES)
            for sender, counted in got.items():
                assert all(counted[other] - counted[sender] <= 2 * LARGE for other in counted)
    assert not queue
    assert not waiting


@given(st.lists(st.integers(0, LARGE), min_size=2, max_size=40), st.data())
def test_however_much_one_has_sent_another_waits_for_what_is_under_way_alone(
    sizes: list[int], data: st.DataObject
) -> None:
    queue = FairQueue[str]()
    for size in sizes:
        queue.add(b"loud", size, "loud")
    for _ in range(data.draw(st.integers(1, len(sizes)))):
        queue.take()
    queue.add(b"loud", sizes[0], "loud")
    queue.add(b"quiet", 100, "quiet")
    assert queue.take() == "quiet"


def test_senders_that_have_gone_are_forgotten() -> None:
    queue = FairQueue[int]()
    queue.add(b"always", LARGE, 0)
    for number in range(3 * MOST_SENDERS):
        queue.add(b"%d" % number, 1, number)
        queue.take()
    assert len(queue._ends) <= MOST_SENDERS


def test_one_that_is_taken_out_is_not_taken_later() -> None:
    queue, items = FairQueue[str](), ["a", "b", "c", "d"]
    for each in items:
        queue.add(each.encode(), 1, each)
    queue.discard("b")
    queue.discard("not in it")
    assert [queue.take() for _ in range(3)] == ["a", "c", "d"]
    assert not queue


def _sent(namespace: str = "asr", user: str = "jane", name: str = "model-0", **annotations: str) -> bytes:
    pod = reviews.pod()
    pod["metadata"]["annotations"] = annotations
    return reviews.as_sent(pod, name=name, namespace=namespace, userInfo={"username": user, "groups": ["a"]})


def test_all_users_of_a_namespace_are_one_sender() -> None:
    """A tenant acts there as any number of ServiceAccounts, and through controllers."""
    assert sender_of(_sent()) == b"asr"
    assert sender_of(_sent(user="system:serviceaccount:asr:1", note="of another pod")) == b"asr"
    assert sender_of(_sent(namespace="tts")) == b"tts"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[" * 50_000, b'"namespace":"' * 20_000, b'\\"' * 20_000, b'"namespace":"' + b"x" * 64],
    ids=len,
)
def test_what_is_no_review_has_a_sender_too(body: bytes) -> None:
    assert len(sender_of(body)) <= LONGEST_NAME


def test_nothing_of_a_tenants_is_taken_for_the_sender() -> None:
    """The API server writes the name in front of the namespace, and has not checked its length or its content."""
    claim = '"namespace":"tts","operation":"CREATE","userInfo":{"username":"joe"'
    assert sender_of(_sent(note=claim)) == b"asr"
    assert sender_of(_sent(user=claim)) == b"asr"
    assert sender_of(_sent(name=claim)) == b"asr"
    assert sender_of(_sent(name="x" * 100_000)) == b"asr"
