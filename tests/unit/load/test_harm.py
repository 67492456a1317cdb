"""The script of harm, and that a run which harmed nobody does not count."""

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.controlplane.bed import Replica
from tests.load.scale import chaos
from tests.load.scale.cpu import between, spent
from tests.load.scale.harm import Harm
from tests.support.patience import holds_within
from tests.testbed.cluster.processes import end, spawn


def harm(seed: int) -> Harm:
    bed: Any = SimpleNamespace(replicas=[Replica(name=f"webhook-{n}", port=n, admin_port=n) for n in range(3)])
    chance = random.Random(seed)
    return Harm(bed=bed, gates=[], kubeconfig=Path("none"), chance=chance, seconds=300, blocked=30)


def names(seed: int) -> list[tuple[float, str]]:
    return [(at, what) for at, what, _ in harm(seed).script()]


def test_a_seed_has_one_script_with_every_kind_of_harm() -> None:
    assert names(1) == names(1) != names(2)
    told = [what for _, what in names(1)]
    assert told.count("replica killed") == told.count("replica started") > 30
    for once in (
        "way to the API server blocked",
        "and opened, connections are lost",
        "API server killed and started again",
    ):
        assert told.count(once) == 1
    assert names(1) == sorted(names(1))


def test_the_way_is_blocked_as_long_as_asked_and_never_twice_at_a_time() -> None:
    at = {what: when for when, what in names(1)}
    assert at["and opened, connections go on"] - at["way to the API server blocked"] == pytest.approx(30)
    assert at["and opened, connections go on"] < at["way to the API server blocked again"]
    assert at["and opened, connections are lost"] < at["API server killed and started again"] < 300


SOUND = chaos.Survived(
    pods=9, deleted=1, refused=1, dry_runs=1, until_all_bound=1.0, stuck=[], of_dry_runs=set(), leaked=[],
    twice=(), problems=(), clock_off=3599.0,
    harm={"replica killed": 1, "API server killed and started again": 1, "way to the API server blocked": 1},
)  # fmt: skip


@pytest.mark.parametrize(
    "without",
    [{"refused": 0}, {"dry_runs": 0}, {"deleted": 0}, {"clock_off": 2.0}, {"harm": {"replica killed": 1}}],
)
def test_a_run_that_harmed_nobody_says_nothing(without: dict[str, Any]) -> None:
    assert chaos.trivial(SOUND) == []
    assert chaos.trivial(replace(SOUND, **without))
    assert all(each.held for each in chaos.figures(SOUND))
    assert not all(each.held for each in chaos.figures(replace(SOUND, leaked=["gpu-share-1"])))


def test_processor_time_of_replicas_and_their_children_is_added_up(tmp_path: Path) -> None:
    busy = "import os, time\nos.fork()\nwhile time.process_time() < 0.3: pass\ntime.sleep(60)"
    made = [spawn(f"busy-{n}", [sys.executable, "-c", busy], tmp_path / "log", dict(os.environ)) for n in range(2)]
    try:
        assert holds_within(lambda: spent(made)["busy"] > 1.0, 60)
        assert list(between({}, spent(made))) == ["busy"]
    finally:
        end(made, patience=0)
