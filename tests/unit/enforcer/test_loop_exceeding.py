"""Which namespaces' new claims wait, as the loop says it to whoever prepares them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.detection.kill_history import RecentKill
from tests.unit.enforcer.test_loop import World, make


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_claims_wait_after_three_pods_were_killed_for_ten_minutes_and_not_while_the_breaker_is_open(
    world: World,
) -> None:
    backoff = world.enforcer._parts.backoff
    world.look()
    assert backoff.admit("tts") == 0.0
    kills = tuple(RecentKill(world.clock[0], "tts", (pod, "model")) for pod in "xyz")
    world.enforcer._state = replace(world.enforcer._state, kills=kills)
    world.look()
    assert backoff.admit("tts") > 0.0
    assert backoff.admit("asr") == 0.0
    world.enforcer._state = replace(world.enforcer._state, open=True)
    assert world.enforcer.exceeding() == frozenset()
    world.enforcer._state = replace(world.enforcer._state, open=False)
    assert world.enforcer.exceeding() == {"tts"}
    world.clock[0] += 600.0
    world.look()
    assert backoff.admit("tts") == 0.0
