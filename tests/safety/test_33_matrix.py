"""The fault matrix (33), and that its checker sees what it is there for."""

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes.containers import Kubelet
from tests.safety.matrix.faults import FAULTS, Ends
from tests.safety.matrix.pool import Found, play
from tests.safety.matrix.saboteurs import BY_NAME
from tests.safety.matrix.trace import Moment
from tests.support import extent

pytestmark = [pytest.mark.node, pytest.mark.timeout(3600 if extent.full() else 600)]

TRIALS = extent.trials(1, 100)
WORKERS = 8 if extent.full() else 4
SCALE = 25
"""A poll of 20 ms stands for half a second."""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="gm"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def mount() -> Path:
    return Kubelet()._mount


def shown(found: Found) -> str:
    return "\n".join([str(found["case"]), *found["broken"], *found["trace"]])


def kind(found: Found) -> str:
    """What was broken, whoever it was and however much."""
    return re.sub(r"\d[\d.]*", "N", ", ".join(found["broken"]))


def cells() -> list[tuple[str, str]]:
    """Every fault at every moment; bounded, every fault at one moment and every moment with a quarter of the faults."""
    found = [(fault.name, str(moment)) for fault in FAULTS for moment in Moment]
    diagonal = [fault % len(Moment) == moment for fault in range(len(FAULTS)) for moment in range(len(Moment))]
    return [cell for cell, chosen in zip(found, diagonal, strict=True) if extent.full() or chosen]


def test_34_faults_at_4_moments_break_no_invariant(mount: Path, folder: Path) -> None:
    assert (len(FAULTS), len(Moment)) == (34, 4)
    rows = [(fault, moment, trial, None) for trial in range(TRIALS) for fault, moment in cells()]
    found = play(rows, mount, folder, workers=WORKERS)
    broken = [each for each in found if each["broken"]]
    seconds = sum(each["seconds"] for each in found)
    print(f"{len(found)} runs of {seconds:.0f} s together, which stand for {seconds * SCALE / 3600:.0f} h")
    kinds = {kind(each): each for each in broken}
    assert not broken, "\n\n".join([str(Counter(map(kind, broken))), *map(shown, kinds.values())])
    assert sorted(str(tuple(each["case"])) for each in found) == sorted(map(str, rows))
    killing = {fault.name for fault in FAULTS if fault.ends is Ends.KILLED}
    assert all(each["counts"]["signal"] for each in found if each["case"][0] in killing)
    extent.figure("33", "runs of the fault matrix that broke an invariant", f"{len(broken)} in {len(found):,}")


def test_the_checker_sees_every_saboteur(mount: Path, folder: Path) -> None:
    rows = [(each.fault, str(each.moment), 1, name) for name, each in BY_NAME.items()]
    found = {each["case"][3]: each["broken"] for each in play(rows, mount, folder, workers=3, patience=6.0)}
    seen = {name: any(line.startswith(f"{each.breaks}:") for line in found[name]) for name, each in BY_NAME.items()}
    print(found)
    assert all(seen.values()), {name: found[name] for name, yes in seen.items() if not yes}
    extent.figure("33", "saboteurs that its checker saw", f"{sum(seen.values())} of {len(seen)}")
