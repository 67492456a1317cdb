"""One control plane with the policies and without the webhook, for all tests here; it ends with them."""

import os
from collections.abc import Iterator

import pytest

from tests.integration.controlplane.conftest import BUILD
from tests.integration.controlplane.policies.world import World
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.need import require_binaries


@pytest.fixture(scope="package")
def world() -> Iterator[World]:
    require_binaries()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-policies")
    try:
        yield World.start(plane)
    finally:
        plane.stop()
