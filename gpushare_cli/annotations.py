"""``gpu-share annotations``: every annotation and label, its values, its default, and what reads it."""

import argparse
from typing import Any, Final

from gpushare.annotation_table import TABLE, Annotation
from gpushare_cli.terminal import FINE, show, table

HEADERS: Final = ("KEY", "ON", "VALUE", "DEFAULT", "READ BY")


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Print every annotation and label of gpu-share. The JSON output also has meanings, examples and "
        "error messages.",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="(%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    show(args.output, [_object(row) for row in TABLE], table(HEADERS, _lines()))
    return FINE


def _lines() -> list[tuple[str, ...]]:
    return [
        (key, row.place, row.type.name, row.default or "none", ", ".join(row.read_by))
        for row in TABLE
        for key in row.keys
    ]


def _object(row: Annotation) -> dict[str, Any]:
    return {
        "keys": row.keys,
        "object": row.on,
        "label": row.label,
        "value": row.type.name,
        "examples": row.type.examples,
        "default": row.default,
        "readBy": row.read_by,
        "meaning": row.meaning,
        "message": row.type.message,
    }
