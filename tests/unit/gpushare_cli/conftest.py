from pathlib import Path

import pytest

from tests.unit.gpushare_cli.injecting import Run


@pytest.fixture(name="inject")
def _inject(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return Run(capsys, tmp_path)
