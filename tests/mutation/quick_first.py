"""A plugin for pytest: quick tests first. Most mutants fail one of those, and the slow ones then need not run."""

import gc
import json
from pathlib import Path
from typing import Final

import pytest

TIMES: Final = Path("mutmut-stats.json")
"""Of the tool, in the folder it runs tests in; not there before it has run them once."""


def pytest_configure() -> None:
    """Leave what all runs were forked with out of garbage collection: half of each run went there."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by how long each took where nothing was broken."""
    if TIMES.exists():
        seconds = json.loads(TIMES.read_text(encoding="utf-8"))["duration_by_test"]
        items.sort(key=lambda item: float(seconds.get(item.nodeid, 0.0)))
