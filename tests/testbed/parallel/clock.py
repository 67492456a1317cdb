"""A plugin for the sessions of ``python -m tests.testbed.parallel``: times each file and stretches waits."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import patient

VARIABLE: Final = "GPU_SHARE_E2E_TIMES"
"""File to write into: ``{file: [tests that ran, seconds]}``."""
_spent: Counter[str] = Counter()
_ran: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every test more time than it asks for: it shares the processors."""
    for item in items:
        asked = item.get_closest_marker("timeout")
        seconds = float(asked.args[0] if asked else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test once, and what its fixtures take to its file."""
    file = report.location[0]
    _spent[file] += round(report.duration * 1000)
    _ran[file] += report.when == "call" or report.outcome != "passed"


def pytest_sessionfinish() -> None:
    """Write it down."""
    if where := os.environ.get(VARIABLE):
        Path(where).write_text(json.dumps({file: [_ran[file], _spent[file] / 1000] for file in _spent}))
