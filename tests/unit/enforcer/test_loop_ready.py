"""The process is Ready while its loop runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.loop import STALLED_SECONDS
from tests.unit.enforcer.test_loop import World, make


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_a_loop_without_an_iteration_is_not_ready(world: World) -> None:
    not_ready = world.enforcer._parts.manager.not_ready
    world.look()
    assert not_ready() is None
    world.clock[0] += STALLED_SECONDS + 1
    assert "not sampled the GPUs for 11 s" in str(not_ready())
    world.look()
    assert not_ready() is None
