"""What every test on a control plane needs first: the servers, or a loud word about their absence."""

import os

import pytest

from tests.cluster.binaries import find_all
from tests.cluster.errors import BedError


def require_binaries() -> None:
    """Skip with the reason where the servers are missing; in CI that is a failure."""
    try:
        find_all()
    except BedError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def binaries() -> None:
    require_binaries()
