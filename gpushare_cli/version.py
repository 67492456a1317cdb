"""``gpu-share version``: which version this is."""

import argparse
from typing import Any

from gpushare.version import installed


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    add(description="Print the version and exit.")


def run(_args: argparse.Namespace) -> int:
    """Print one line."""
    print(f"gpu-share {installed()}")
    return 0
