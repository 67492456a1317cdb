"""How large the objects of a claim get: the API server keeps no object above 1.5 MiB, and every watcher reads each."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from enforcer.dra.claim_status import status_of
from gpushare import contract
from tests.unit.enforcer.dra.objects import claim, container, pod
from tests.unit.enforcer.dra.world import World

WHEN = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize("shares", [1, 28])
def test_what_a_claims_status_says_of_a_share_is_small(shares: int, tmp_path: Path) -> None:
    names = [f"container-{number}" for number in range(shares)]
    made = pod("tts", {f"{contract.MEMORY_OF}{name}": "512Mi" for name in names}, *map(container, names))
    world = World(tmp_path)
    world.driver.prepare(world.add(made, allocated := claim(made)))
    status = {**allocated["status"], **status_of(world.published[-1], WHEN)["status"]}
    assert len(status["devices"]) == shares + 1
    size = len(json.dumps(status, separators=(",", ":")))
    print(f"\nstatus of a claim of {shares}: {size} bytes, {size / shares:.0f} a share")
    assert size < 2048 * (shares + 1)
