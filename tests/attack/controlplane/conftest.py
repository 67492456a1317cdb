"""A control plane with the product on it, and the people who attack it, by impersonation."""

import os
from collections.abc import Iterator

import pytest

from tests.attack.controlplane.people import People
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.conftest import BUILD
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.need import require_binaries


@pytest.fixture(scope="package")
def people() -> Iterator[People]:
    require_binaries()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-attack")
    try:
        yield People.meet(Bed.install(plane, replicas=1))
    finally:
        plane.stop()
