"""The first looks, while nobody has reported yet who may hold what."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.loop import EnforcementLoop
from tests.support.clock import FakeClock
from tests.support.wiring import Quotas
from tests.unit.enforcer.made import GPU, quota
from tests.unit.enforcer.test_loop import World, make, wait_for


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_a_disk_that_is_slow_at_the_start_forgets_no_grace_period(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.quotas[:] = [quota(grace_seconds=60.0)]
    world.reader.used[GPU] = {101: 9000}
    world.look(5)

    answers = threading.Event()
    monkeypatch.setattr("enforcer.runtime.background.WAIT_SECONDS", 0.05)
    checkpoint = Quotas(lambda: world.quotas if answers.wait(30) else ())
    parts = replace(world.enforcer._parts, checkpoint=checkpoint)
    again = EnforcementLoop("gpu-7", world.folder, parts, clock=FakeClock(lambda: world.clock[0]))
    recalled = again._state.cases
    assert recalled
    for _ in range(3):
        again.poll()
    assert again._state.cases == recalled, "nothing was evaluated"
    answers.set()

    def knows() -> bool:
        again.poll()
        return again._knows

    wait_for(knows)
    again.close()
    begins = {place: case.over_for for place, case in recalled.items()}
    assert {place: case.over_for for place, case in again._state.cases.items()} == begins
