"""What every test on a control plane needs first."""

import pytest

from tests.testbed.cluster.need import require_binaries


@pytest.fixture(scope="session")
def binaries() -> None:
    require_binaries()
