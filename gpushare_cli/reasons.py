"""``gpu-share reasons``: what a Reason means, what to do, and where it appears."""

import argparse
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from gpushare.errors import ConfigError
from gpushare.reason_row import ReasonRow
from gpushare.reason_table import TABLE
from gpushare_cli.terminal import FINE, show, table

HEADERS: Final = ("REASON", "MEANING")
SHOWN: Final = 100
"""Characters of a wrong word that are shown and compared."""
_BY_WORD: Final = {row.reason.lower(): row for row in TABLE}


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Print every Reason with its meaning. For one Reason, also print the remedy and where it appears.",
    )
    parser.add_argument(
        "reason", nargs="?", metavar="REASON", help="a Reason, in upper or lower case, for example OverQuota"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="(%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table, or one of its rows.

    Raises:
        ConfigError: there is no such Reason; the nearest is named.
    """
    one = None if args.reason is None else _row(args.reason)
    lines = _lines(one) if one else table(HEADERS, ((row.reason, row.meaning) for row in TABLE))
    show(args.output, _object(one) if one else [_object(row) for row in TABLE], lines)
    return FINE


def _row(text: str) -> ReasonRow:
    word = text[:SHOWN].lower()
    if word not in _BY_WORD:
        near = _BY_WORD[get_close_matches(word, _BY_WORD, 1, cutoff=0)[0]].reason
        raise ConfigError(f"REASON {text[:SHOWN]!r} does not exist; did you mean {near}?")
    return _BY_WORD[word]


def _lines(row: ReasonRow) -> Iterator[str]:
    yield f"{row.reason}: {row.meaning}"
    if row.action:
        yield f"What to do: {row.action}"
    yield f"Appears in: {', '.join(row.places)}."


def _object(row: ReasonRow) -> dict[str, Any]:
    return {key: getattr(row, key) for key in ("reason", "meaning", "action", "places", "anchor")}
