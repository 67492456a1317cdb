"""What the machine outside concludes from what it was told before a power cut and shown after it."""

from typing import Any

import pytest

from tests.safety.power.ledger import Ledger

FIRST: list[dict[str, Any]] = [
    {"what": "left", "records": [], "claims": [], "unreadable": []},
    {"what": "preparing", "uid": "a"},
    {"what": "prepared", "uid": "a"},
    {"what": "prepared", "uid": "b"},
    {"what": "undoing", "uid": "b"},
    {"what": "prepared", "uid": "c"},
    {"what": "undoing", "uid": "c"},
    {"what": "undone", "uid": "c"},
    {"what": "record", "seq": 1, "hash": "x"},
    {"what": "signal", "pid": 7, "number": 15, "container": "one"},
]
KEPT: dict[str, Any] = {
    "what": "left", "records": [[1, "x", "INTENT", "one"], [2, "y", "OUTCOME", "one"]],
    "claims": ["a"], "unreadable": [],
}  # fmt: skip
SETTLED: dict[str, Any] = {
    "what": "settled", "holds": True, "verdict": "", "recovered": 1, "twice": 0, "unanswered": [3], "newest": 2,
}  # fmt: skip


def after(*lines: dict[str, Any]) -> Ledger:
    ledger = Ledger()
    ledger.take(1, FIRST)
    ledger.take(2, lines)
    return ledger


@pytest.mark.parametrize("claims", [["a"], ["a", "b"], ["a", "b", "d"]])
def test_what_was_acknowledged_is_there_and_what_was_under_way_may_be(claims: list[str]) -> None:
    ledger = after({**KEPT, "claims": claims}, SETTLED)
    assert ledger.broken == []
    assert (ledger.signals, ledger.recovered, ledger.settled, ledger.undone) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({**KEPT, "records": [[1, "z", "INTENT", "one"]]}, "records are lost"),
        ({**KEPT, "records": [[1, "x", "WARNED", "one"]]}, "without a durable INTENT"),
        ({**KEPT, "claims": []}, "prepared claims are lost"),
        ({**KEPT, "claims": ["a", "c"]}, "undone claims are back"),
        ({**KEPT, "unreadable": ["a.json"]}, "cannot be read"),
        ({**SETTLED, "holds": False}, "does not verify"),
        ({**SETTLED, "twice": 1}, "two answers"),
        ({**SETTLED, "unanswered": [2]}, "no answer"),
    ],
)
def test_what_may_not_be_is_named(line: dict[str, Any], said: str) -> None:
    (broken,) = after(line).broken
    assert broken.startswith("life 2: ")
    assert said in broken
