"""One control plane with the policies and without the webhook, for all tests here; it ends with them."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane, sweep
from tests.cluster.need import require_binaries
from tests.controlplane.conftest import BUILD
from tests.controlplane.policies.world import World


@pytest.fixture(scope="package")
def world() -> Iterator[World]:
    require_binaries()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-policies")
    try:
        yield World.start(plane)
    finally:
        plane.stop()
