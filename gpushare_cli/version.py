"""``gpu-share version``: which version this is."""

import argparse
from typing import Any

from gpushare.version import installed


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    subparsers.add_parser("version", help="print the version", description="Print the version and exit.")


def run(_args: argparse.Namespace) -> int:
    """Print one line."""
    print(f"gpu-share {installed()}")
    return 0
