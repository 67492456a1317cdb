"""The options of ``gpu-share report``."""

import argparse
from datetime import UTC, datetime
from typing import Any

from gpushare_cli.options import add_prometheus


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Print what each namespace reserved, used and left idle of GPU memory in a month, in GiB hours, "
        "and its kills. Needs Prometheus with the recording rules of the chart (monitoring.prometheusRule.enabled).",
    )
    what = "the month, in UTC (default: the current one, up to now)"
    parser.add_argument("--month", type=month, default=None, metavar="YYYY-MM", help=what)
    add_prometheus(parser, "")
    parser.add_argument("-o", "--output", choices=("table", "json", "csv"), default="table")


def month(text: str) -> datetime:
    """Read a month; returns its beginning. Raises ``argparse.ArgumentTypeError``."""
    try:
        found = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        found = datetime.max.replace(tzinfo=UTC)
    if found > datetime.now(UTC):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a month that has begun; write for example 2026-11")
    return found
