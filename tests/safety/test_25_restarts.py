"""Test 25: a grace period over restarts of the enforcer is neither shortened nor stretched."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from enforcer.runtime.clock import CLOCK
from tests.integration.processes.containers import alive
from tests.integration.processes.enforcing import Node
from tests.safety.lives import GRACE, LOOP, LOOP_GRACE, POLL, RUINS
from tests.support import extent

PROJECT: Final = Path(__file__).resolve().parents[2]
REAL_GRACE: Final = extent.trials(4, 30)
REAL_RESTARTS: Final = extent.trials(1, 3)


@pytest.fixture(name="found", scope="module")
def _found() -> dict[str, Any]:
    """What many short lives came to."""
    command = [sys.executable, "-m", "tests.safety.lives", str(extent.trials(16, 200))]
    said = subprocess.run(command, cwd=PROJECT, env=os.environ, stdout=subprocess.PIPE, check=True, timeout=900)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_killed_at_random_points_of_a_grace_period_it_ends_when_it_would_have(found: dict[str, Any]) -> None:
    assert found["restarts"] >= extent.trials(16, 200)
    assert set(found["points"]) <= {0, 1}, "looks late; below none it would be shortened"
    said = f"{max(found['points'])} at most in {found['restarts']} restarts (grace {GRACE} s, poll {POLL} s)"
    extent.figure("25", "samples by which the end of grace came late", said)


def test_a_restart_loop_gains_no_more_than_two_looks(found: dict[str, Any]) -> None:
    assert found["lives"] > 3 * len(found["loops"])
    assert set(found["loops"]) <= {0, 1, 2}
    said = f"{max(found['loops'])} at most in {found['lives']} lives of {LOOP} samples (grace {LOOP_GRACE} s)"
    extent.figure("25", "samples by which a restart loop delayed the end of grace", said)


def test_a_state_file_that_is_none_gives_a_full_grace_and_is_notified(found: dict[str, Any]) -> None:
    assert found["ruins"].keys() == RUINS.keys()
    wrong = {name: told for name, told in found["ruins"].items() if told[0] not in {0, 1} or not told[1]}
    assert wrong == {}
    extent.figure("25", "spoilt state files without a full grace, or not reported", f"{len(wrong)} of {len(RUINS)}")


def test_the_program_itself_killed_in_mid_grace(tmp_path: Path) -> None:
    with ExitStack() as stack:
        node = Node(tmp_path, stack)
        stack.callback(node.end)
        container = node.container()
        node.allow(container.quota(node.gpu, 1024, grace_seconds=float(REAL_GRACE)))
        tenant = container.tenant(node.sim, "--mib", "4096")
        begun = CLOCK.boottime()
        node.start()
        for number in range(REAL_RESTARTS):
            at = begun + REAL_GRACE * (number + 1) / (REAL_RESTARTS + 2)
            while CLOCK.boottime() < at:
                node.looks(1)
            assert node.stop(signal.SIGKILL) == -signal.SIGKILL
            assert alive(tenant), "in mid-grace"
            before = len(node.records("GRACE_STARTED"))
            node.start()
        tenant.wait(REAL_GRACE + 60)
        lasted = CLOCK.boottime() - begun
        (intent,), armed = node.records("INTENT"), len(node.records("GRACE_STARTED"))
        over = float(intent["overFor"].removesuffix("s"))
    assert armed == before, "no later life began it anew"
    assert lasted >= REAL_GRACE
    assert over >= REAL_GRACE
    said = f"{over:.1f} s counted, {lasted:.1f} s from the tenant's start to its end, {REAL_RESTARTS} restarts"
    extent.figure("25", f"a grace of {REAL_GRACE} s over restarts of the program", said)
