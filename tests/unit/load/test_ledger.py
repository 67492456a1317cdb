"""The ledger: what is over-committed, and from when a pod could have had a place."""

from typing import Any

import pytest

from tests.load.scale.ledger import MIB, Ledger

Object = dict[str, Any]
DRIVER = "test.driver"
A, B = (DRIVER, "n", "a"), (DRIVER, "n", "b")


def ledger(a: int = 10, b: int = 0) -> Ledger:
    return Ledger({A: (a * MIB, 100, 48), B: (b * MIB, 100, 48)}, DRIVER)


def claim(pod: str, mib: int, device: str = "a", uid: str = "") -> Object:
    consumed = {"memory": f"{mib}Mi", "clients": "1"}
    result = {"driver": DRIVER, "pool": "n", "device": device, "request": "main", "consumedCapacity": consumed}
    owner = {"kind": "Pod", "name": pod}
    return {
        "metadata": {"namespace": "team", "name": f"{pod}-gpu", "uid": uid or pod, "ownerReferences": [owner]},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def pod(name: str, node: str | None = "n") -> Object:
    return {"metadata": {"name": name, "uid": name}, "spec": {"nodeName": node} if node else {}}


def place(book: Ledger, name: str, mib: int, now: float, device: str = "a") -> None:
    book.ask(name, mib, 0, now)
    book.claim_event("MODIFIED", claim(name, mib, device), now)
    book.pod_event("MODIFIED", pod(name), now)


def test_a_pod_with_room_when_it_comes_waits_from_then_on() -> None:
    book = ledger()
    book.ask("x", 4, 0, 10.0)
    assert book.stuck() == ["x"]
    assert book.open(11.0) == [1.0]
    book.claim_event("MODIFIED", claim("x", 4), 12.0)
    book.pod_event("MODIFIED", pod("x"), 12.5)
    (bound,) = book.settled()
    assert (bound.since_asked, bound.since_claims, bound.since_holders) == (2.5, 2.5, 2.5)
    assert (book.stuck(), book.settled(1)) == ([], [])


def test_room_comes_with_the_end_of_a_claim_and_for_people_with_the_end_of_its_pod() -> None:
    book = ledger()
    place(book, "old", 8, 1.0)
    book.ask("new", 4, 0, 2.0)
    assert (book.stuck(), book.without_room()) == ([], 1)
    book.pod_event("DELETED", pod("old"), 5.0)
    assert book.stuck() == [], "the claim holds it still"
    book.claim_event("DELETED", claim("old", 8), 6.0)
    assert book.stuck() == ["new"]
    book.claim_event("MODIFIED", claim("new", 4), 6.5)
    book.pod_event("MODIFIED", pod("new"), 7.0)
    bound = book.settled()[-1]
    assert (bound.since_asked, bound.since_claims, bound.since_holders) == (5.0, 1.0, 2.0)


def test_a_claim_that_loses_its_allocation_gives_room_back() -> None:
    book = ledger()
    place(book, "old", 8, 1.0)
    book.ask("new", 4, 0, 2.0)
    book.claim_event("MODIFIED", {**claim("old", 8), "status": {}}, 3.0)
    assert book.stuck() == ["new"]


def test_room_that_another_takes_is_gone_and_the_next_counts_again() -> None:
    book = ledger()
    place(book, "old", 8, 1.0)
    book.ask("first", 8, 0, 2.0)
    book.ask("second", 8, 0, 3.0)
    book.claim_event("DELETED", claim("old", 8), 4.0)
    assert book.stuck() == ["first", "second"]
    book.claim_event("MODIFIED", claim("first", 8), 5.0)
    assert book.stuck() == ["first"], "what is taken for it is its own room"
    book.pod_event("MODIFIED", pod("first"), 6.0)
    book.claim_event("DELETED", claim("first", 8), 10.0)
    book.claim_event("MODIFIED", claim("second", 8), 10.5)
    book.pod_event("MODIFIED", pod("second"), 11.0)
    assert [each.since_claims for each in book.settled()[1:]] == [2.0, 1.0]


def test_room_on_another_device_goes_on() -> None:
    book = ledger(b=10)
    book.ask("x", 8, 0, 1.0)
    place(book, "y", 8, 2.0)
    assert book.open(3.0) == [2.0], "b has had room for it all the while"
    place(book, "z", 8, 4.0, "b")
    assert book.open(5.0) == []


@pytest.mark.parametrize("need", [(11, 0), (1, 101)])
def test_memory_and_compute_have_both_to_be_there(need: tuple[int, int]) -> None:
    book = ledger()
    book.ask("x", *need, 1.0)
    assert book.stuck() == []


def test_what_a_device_does_not_have_is_a_problem_when_it_is_promised() -> None:
    book = ledger()
    place(book, "x", 6, 1.0)
    assert book.problems == []
    place(book, "y", 6, 2.0)
    assert len(book.problems) == 1
    assert "y-gpu" in book.problems[0]


def test_a_claim_told_twice_is_taken_once_and_other_devices_do_not_count() -> None:
    book = ledger()
    place(book, "x", 5, 1.0)
    book.claim_event("MODIFIED", claim("x", 5), 2.0)
    book.claim_event("MODIFIED", claim("z", 5, "of-another-fleet"), 2.0)
    assert (book.fill(), book.problems) == (0.5, [])
    for _ in range(2):
        book.claim_event("DELETED", claim("x", 5), 3.0)
    assert book.fill() == 0.0


def test_a_waiting_pod_that_is_deleted_waits_no_more() -> None:
    book = ledger()
    book.ask("x", 5, 0, 1.0)
    book.pod_event("DELETED", pod("x", None), 2.0)
    assert (book.stuck(), book.settled()) == ([], [])


def test_a_shortfall_tells_without_whom_it_would_have_fitted() -> None:
    book = ledger()
    for name, mib in (("x", 6), ("y", 3), ("z", 4)):
        place(book, name, mib, 1.0)
    (found,) = book.shortfalls
    without = {name: found.comes_of({f"team/{name}-gpu"}, 60) for name in ("x", "y", "z", "other")}
    assert without == {"x": True, "y": True, "z": True, "other": False}
    place(book, "much", 8, 2.0)
    assert [book.shortfalls[1].comes_of({f"team/{name}-gpu"}, 60) for name in ("z", "much")] == [False, False]
    assert book.shortfalls[1].comes_of({"team/z-gpu", "team/much-gpu"}, 60)


@pytest.mark.parametrize("lost", ["team/x-gpu", "team/y-gpu"])
def test_what_was_long_known_when_another_came_is_not_what_nobody_knew_of(lost: str) -> None:
    book = ledger()
    place(book, "x", 6, 1.0)
    place(book, "y", 6, 62.0)
    assert [each.comes_of({lost}, 60) for each in book.shortfalls] == [False]
    assert [each.comes_of({lost}, 61) for each in book.shortfalls] == [True]


def test_a_claim_that_moved_while_nobody_watched_has_left_its_old_device() -> None:
    book = ledger(b=10)
    place(book, "x", 6, 1.0)
    book.claim_event("MODIFIED", claim("x", 6, "b"), 2.0)
    place(book, "y", 6, 3.0)
    assert book.problems == []
    place(book, "z", 6, 4.0, "b")
    assert len(book.problems) == 1
