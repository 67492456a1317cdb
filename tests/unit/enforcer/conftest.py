from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The program sets up logging for its whole process, onto the stream of the test that ran it."""
    yield
    structlog.reset_defaults()
