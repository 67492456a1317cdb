"""The table of Reasons is whole, and says of each Reason where the code uses it."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from enforcer.dra.claim_status import WORST
from enforcer.nvml.validation import ERRORS
from enforcer.resourceslices.health_monitor import WORDS
from enforcer.status.messages import RESULTS
from gpushare.errors import ClusterError, PolicyDenied, PrepareError, QuantityError
from gpushare.reason_row import Place, ReasonRow
from gpushare.reason_table import BY_REASON, TABLE
from gpushare.reasons import Reason
from webhook.metrics import FIRST_LABELS

ROOT: Final = Path(__file__).resolve().parents[3]
CALLS: Final = {
    "Mutation": Place.ADMISSION, "Problem": Place.ADMISSION, "PolicyDenied": Place.ADMISSION,
    "UserMessage": Place.POD_EVENT, "PrepareError": Place.POD_EVENT,
    "NodeEvent": Place.NODE_EVENT, "Incident": Place.NODE_EVENT,
    "ResizeRefused": Place.RESIZE, "process_outcome": Place.AUDIT,
    "debug": Place.LOG, "info": Place.LOG, "warning": Place.LOG, "error": Place.LOG, "critical": Place.LOG,
    "exception": Place.LOG,
}  # fmt: skip
"""What the code calls with a Reason, and where that Reason is then seen."""
TABLES: Final[Mapping[Place, Iterable[Reason]]] = {
    Place.ADMISSION: [reason for *_, reason in FIRST_LABELS] + [PolicyDenied.reason, QuantityError.reason],
    Place.POD_EVENT: [*RESULTS, PrepareError.reason, ClusterError.reason],
    Place.NODE_EVENT: WORDS,
    Place.TAINT: WORDS,
    Place.CONDITION: WORST,
    Place.METRIC: [reason for reason, _ in ERRORS.values()],
}
"""Reasons that reach a place by way of a variable."""


def calls() -> Iterator[tuple[Place, Reason, str]]:
    for part in ("gpushare", "gpushare_cli", "enforcer", "webhook", "sidecar", "certs"):
        for file in sorted((ROOT / part).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and (place := CALLS.get(ast.unparse(node.func).rpartition(".")[2])):
                    where = f"{file.relative_to(ROOT)}:{node.lineno}"
                    yield from ((place, reason, where) for reason in named(node))


def named(call: ast.Call) -> Iterator[Reason]:
    for given in [*call.args, *(each.value for each in call.keywords)]:
        for node in ast.walk(given):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Reason":
                yield Reason[node.attr]


def test_every_reason_has_one_row() -> None:
    assert Counter(row.reason for row in TABLE) == Counter(Reason)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.reason)
def test_a_row_has_sentences_and_places_in_order(row: ReasonRow) -> None:
    assert row.meaning.endswith(".")
    assert not row.action or row.action.endswith(".")
    assert row.places
    assert row.places == tuple(place for place in Place if place in row.places)


def test_no_two_reasons_mean_the_same() -> None:
    assert max(Counter(row.meaning for row in TABLE).values()) == 1


def test_a_reason_has_every_place_where_the_code_uses_it() -> None:
    found = list(calls())
    assert len(found) > 100
    assert [each for each in found if each[0] not in BY_REASON[each[1]].places] == []


@pytest.mark.parametrize("place", TABLES)
def test_a_reason_has_every_place_that_a_table_of_the_code_gives_it(place: Place) -> None:
    assert [reason for reason in TABLES[place] if place not in BY_REASON[reason].places] == []
