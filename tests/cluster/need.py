"""The servers of a control plane, or a word about their absence."""

from tests.cluster.binaries import find_all
from tests.cluster.errors import BedError
from tests.support.need import missing


def require_binaries() -> None:
    """Skip the test where the servers are missing; in CI fail it."""
    try:
        find_all()
    except BedError as error:
        missing(str(error))
