import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The program sets up logging for its whole process, onto the stream of the test that ran it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _disk_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look waits for the disk, however busy the machine is. Tests of disks that hang set less, after this."""
    monkeypatch.setattr("enforcer.runtime.background.WAIT_SECONDS", 60.0)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder like ``tmp_path`` whose name leaves room for the paths of sockets, also in one of several workers."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        yield Path(folder)
