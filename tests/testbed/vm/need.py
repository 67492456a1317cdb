"""What a test says where no virtual machine can be had: a failure in CI, elsewhere a skip with the reason."""

from tests.support.need import missing
from tests.testbed.cluster.errors import BedError
from tests.testbed.vm.node import require_programs


def require_vm() -> None:
    """Skip the test where a right, a program or a package is missing; in CI fail it."""
    try:
        require_programs()
    except BedError as error:
        missing(str(error))
