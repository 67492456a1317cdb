"""The loop on a disk that refuses to keep its memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from enforcer.detection import state_file
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import World, make


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_a_failure_to_keep_budgets_is_logged_once_until_they_are_kept_again(world: World) -> None:
    """An enforcer takes two samples a second: a log line for each would fill the disk that is failing."""
    world.reader.used[GPU] = {101: 5000}
    hindrance = world.folder / f".{state_file.NAME}.new"
    with capture_logs() as logs:
        for _ in range(2):
            hindrance.mkdir()
            world.look(10)
            hindrance.rmdir()
            world.look(2)
    assert (world.folder / state_file.NAME).exists()
    assert len([each for each in logs if each["event"] == "budgets not saved"]) == 2
