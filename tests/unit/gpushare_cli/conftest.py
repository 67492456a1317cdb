from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.prometheus_api import Api, serving
from tests.unit.gpushare_cli.injecting import Run


@pytest.fixture(name="inject")
def _inject(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return Run(capsys, tmp_path)


@pytest.fixture(name="api")
def _api() -> Iterator[Api]:
    """A Prometheus that answers as the test has it."""
    with serving() as api:
        yield api
