"""``make bench``: the webhook beside floors; ARGS=api, fair, soak, ready or ui: what else users wait for.

Each has ``--help``, prints a table, writes JSON under .build/bench, and with ``--write PATH`` puts the table into a
document.
"""

import sys
from importlib import import_module
from typing import Final

BENCHES: Final = ("api", "fair", "soak", "ready", "ui")
"""Modules beside this one; each needs more than the others do. Without a name it is ``compare``."""


def main(argv: list[str]) -> int:
    """Run the benchmark that the first argument names; returns the exit code."""
    name, rest = (argv[0], argv[1:]) if argv[:1] and argv[0] in BENCHES else ("compare", argv)
    return int(import_module(f"tests.load.bench.{name}").main(rest))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
