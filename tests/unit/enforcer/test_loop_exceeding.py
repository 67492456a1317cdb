"""Which namespaces' new claims wait, as the loop says it to whoever prepares them."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from enforcer.detection.budget import Account
from enforcer.kill import circuit_breaker
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.test_loop import World, make


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from make(tmp_path, enforcing=True)


def test_claims_wait_while_the_namespace_has_no_budget_and_not_while_the_breaker_is_open(world: World) -> None:
    wait = world.enforcer._parts.claim_wait
    world.look()
    assert wait.seconds("tts") == 0.0
    account = Account(used=6.0, at=world.clock[0], size=5.0)
    world.enforcer._state = replace(world.enforcer._state, accounts={("tts", GPU): account})
    world.look()
    assert 0.0 < wait.seconds("tts") <= 24.0
    assert (wait.seconds("asr"), wait.refusal("asr")) == (0.0, "")
    until = datetime.now(UTC) + timedelta(seconds=wait.seconds("tts"))
    named = {f"waits until {until + timedelta(seconds=late):%H:%M:%S}Z" for late in (-1, 0, 1)}
    assert any(each in wait.refusal("tts") for each in named)
    assert "kubectl get events -n tts" in wait.refusal("tts")
    (world.folder / circuit_breaker.NAME).write_text("")
    world.look()
    assert wait.seconds("tts") == 0.0
