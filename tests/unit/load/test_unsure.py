"""What a scheduler gave twice is told from what else may be wrong by its own log alone."""

from typing import Any

import pytest

from tests.load.scale.ledger import Ledger
from tests.load.scale.unsure import sort, unanswered

PUT = r"Put \"https://127.0.0.1:1/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/one/status\""
LINE = (
    'E1123 12:00:00.000000 7 framework.go:1803] "Plugin failed" '
    'err="add allocation and reservation to claim {}: {}" pod="a/p"'
)
LOST = f"{PUT}: unexpected EOF"
SIZE = 10
SLICE = {
    "spec": {
        "driver": "gpu-share.io",
        "pool": {"name": "n", "generation": 1},
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": f"{SIZE}Mi"}}}],
    }
}


def claim(name: str, mib: int) -> dict[str, Any]:
    result = {"driver": "gpu-share.io", "pool": "n", "device": "gpu-0", "request": "main"}
    return {
        "metadata": {"namespace": "a", "name": name, "uid": name},
        "spec": {"devices": {"requests": [{"name": "main", "exactly": {"capacity": {"requests": {"memory": "2Mi"}}}}]}},
        "status": {"allocation": {"devices": {"results": [{**result, "consumedCapacity": {"memory": f"{mib}Mi"}}]}}},
    }


def lines(*claims: str, why: str = LOST) -> str:
    return "\n".join(LINE.format(f"a/{each}", why) for each in claims)


@pytest.mark.parametrize(
    "why",
    [
        LOST,
        f"{PUT}: read tcp 127.0.0.1:2->127.0.0.1:1: read: connection reset by peer",
        f"{PUT}: http2: client connection lost",
        f"{PUT}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        "etcdserver: request timed out",
    ],
)
def test_a_write_without_an_answer_may_have_been_stored(why: str) -> None:
    assert unanswered(lines("one", why=why)) == {"a/one"}


@pytest.mark.parametrize(
    "why",
    [
        f"{PUT}: dial tcp 127.0.0.1:1: connect: connection refused",
        f"{PUT}: dial tcp 127.0.0.1:1: i/o timeout",
        f"{PUT}: net/http: TLS handshake timeout",
        r"resourceclaims.resource.k8s.io \"one\" is forbidden: no",
        r"admission webhook \"w\" denied the request: no",
        r"Internal error occurred: failed calling webhook \"w\": context deadline exceeded",
        "client rate limiter Wait returned an error: context deadline exceeded",
        "Unauthorized",
        "the server has received too many requests and has asked us to try again later",
        "claim a/one got allocated elsewhere in the meantime",
        r"Operation cannot be fulfilled on x \"one\": the object has been modified",
    ],
)
def test_a_write_that_was_refused_or_never_sent_was_not(why: str) -> None:
    assert unanswered(lines("one", why=why)) == set()


def found(log: str, apart: float = 0.1, **mib: int) -> tuple[int, int]:
    """How many problems of these claims, seen so many seconds apart, are the scheduler's, and how many are not."""
    claims = [claim(name, size) for name, size in mib.items()]
    book = Ledger.of([SLICE], "gpu-share.io")
    for number, each in enumerate(claims):
        book.claim_event("MODIFIED", each, number * apart)
    told = sort([SLICE], claims, book.shortfalls, log)
    return len(told.twice), len(told.others)


def test_what_fits_without_the_claims_that_were_not_answered_is_the_schedulers_doing() -> None:
    assert found(lines("one"), one=8, two=8) == (2, 0), "auditor and ledger"
    assert found(lines("two"), one=8, two=8) == (2, 0), "whichever was seen first"
    assert found("", one=8, two=8) == (0, 2)
    assert found(lines("elsewhere"), one=8, two=8) == (0, 2)


def test_one_of_them_excuses_no_more_than_it_has() -> None:
    assert found(lines("small"), small=2, one=8, two=8) == (0, 2)
    assert found(lines("one", "small"), small=2, one=8, two=8) == (2, 0)


def test_what_is_no_shortfall_is_never_the_schedulers_doing() -> None:
    assert found(lines("one"), one=1) == (0, 1), "it was asked for 2"


@pytest.mark.parametrize("lost", ["one", "two"])
def test_what_came_long_afterwards_is_not_the_schedulers_doing(lost: str) -> None:
    assert found(lines(lost), 61.0, one=8, two=8) == (0, 2)


def test_a_shortfall_that_is_excused_hides_none_of_the_same_words() -> None:
    book, one, two = Ledger.of([SLICE], "gpu-share.io"), claim("one", 8), claim("two", 8)
    for each in (claim("three", 8), two, {**two, "status": {}}, {**claim("three", 8), "status": {}}, one, two):
        book.claim_event("MODIFIED", each, 1.0)
    told = sort([SLICE], [], book.shortfalls, lines("one"))
    assert (len(told.twice), len(told.others)) == (1, 1)
