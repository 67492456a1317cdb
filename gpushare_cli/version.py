"""``gpu-share version``: which version this is."""

import argparse
from importlib import metadata
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    subparsers.add_parser("version", help="print the version", description="Print the version and exit.")


def run(_args: argparse.Namespace) -> int:
    """Print one line."""
    print(f"gpu-share {installed()}")
    return 0


def installed() -> str:
    """Return the installed version, or ``0`` for a bare checkout that was never installed."""
    try:
        return metadata.version("gpu-share")
    except metadata.PackageNotFoundError:
        return "0"
