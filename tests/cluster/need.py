"""A word about missing servers: loud in CI, a skip with its reason elsewhere."""

import os

import pytest

from tests.cluster.binaries import find_all
from tests.cluster.errors import BedError


def require_binaries() -> None:
    """Skip the test where the servers are missing; in CI (variable ``CI``) fail it."""
    try:
        find_all()
    except BedError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
