"""Test 26: the wall clock jumps while the enforcer judges; what it decides and says does not change by a letter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.safety import wallclock
from tests.safety.clockrun import JUMPS
from tests.support import extent

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = extent.trials(24, 600)


@pytest.fixture(name="shim", scope="module")
def _shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wallclock.library(tmp_path_factory.mktemp("shim"))


def run(shim: Path, name: str, seeds: int, *more: str) -> dict[str, Any]:
    """What a process of its own says of all seeds under one kind of jump."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.safety.clockrun", name, str(seeds), str(SECONDS), *more],
        env={**os.environ, "LD_PRELOAD": str(shim)}, cwd=ROOT, stdout=subprocess.PIPE, check=True,
        timeout=900,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_jumps_of_the_wall_clock_change_no_decision(shim: Path) -> None:
    seeds = extent.trials(1, 12)
    plain = run(shim, "none", seeds)
    assert plain["kills"] >= seeds, "a run without kills says nothing"
    assert plain["moved"] < SECONDS
    others = [name for name in JUMPS if name != "none"]
    found = {name: run(shim, name, seeds) for name in others}
    assert {name for name in others if found[name]["moved"] < SECONDS} == set(), "the shim moved nothing"
    wrong = [name for name in others if found[name]["digest"] != plain["digest"]]
    assert wrong == []
    judged = run(shim, "an hour ahead", 1, "saboteur")
    assert judged["digest"] != run(shim, "none", 1, "saboteur")["digest"], "a judge by the wall clock would be seen"
    extent.figure(
        "26", f"runs of {SECONDS} s decided otherwise where the wall clock jumped",
        f"{len(wrong)} of {len(others)} kinds of jump, {seeds} scripts each, {plain['kills']} kills in a run of all",
    )  # fmt: skip
