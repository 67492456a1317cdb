"""The servers of a control plane, or a word about their absence."""

from tests.support.need import missing
from tests.testbed.cluster import packages
from tests.testbed.cluster.binaries import Group, find_all
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.node import require_rights


def require_binaries() -> None:
    """Skip the test where the servers are missing; in CI fail it."""
    try:
        find_all()
    except BedError as error:
        missing(str(error))


def require_node() -> None:
    """Skip the test where no real node can be had: a right, a binary or a package is missing; in CI fail it."""
    require_binaries()
    try:
        require_rights()
        find_all(Group.NODE, Group.CHART)
        packages.tree(packages.NODE_PACKAGES)
    except BedError as error:
        missing(str(error))
