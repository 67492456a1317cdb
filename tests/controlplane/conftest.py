"""One control plane with the product on it for all tests here; each brings its own namespaces and nodes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane, sweep
from tests.cluster.need import require_binaries
from tests.controlplane.bed import Bed

BUILD = Path(__file__).parents[2] / ".build" / "e2e"


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    require_binaries()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / str(os.getpid()))
    yield plane
    plane.stop()


@pytest.fixture(scope="session")
def bed(plane: ControlPlane) -> Bed:
    return Bed.install(plane)
