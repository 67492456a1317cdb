from collections.abc import Iterator

import pytest

from tests.unit.gpushare_cli.ui.fleets import MADE


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()
