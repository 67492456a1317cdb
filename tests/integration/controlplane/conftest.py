"""One control plane with the product on it for all tests here; each brings its own namespaces and nodes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.release import Release, on_control_plane
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.need import require_binaries

BUILD = Path(__file__).parents[3] / ".build" / "integration"


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


@pytest.fixture(scope="module", name="installed")
def _installed(bed: Bed) -> Iterator[Release]:
    with on_control_plane(bed) as release:
        yield release
