"""Which Kubernetes the control plane is: the newest supported one, or by choice the oldest.

The choice is an environment variable, so that it reaches every process of a test run.
"""

import os
from typing import Final

from tests.testbed.cluster.errors import BedError

VARIABLE: Final = "GPU_SHARE_KUBERNETES"
VERSIONS: Final = {"1.37": "1.37.1", "1.36": "1.36.4"}
"""What may be chosen, newest first, and what is built for it."""
NEWEST, *_, OLDEST = VERSIONS


def chosen() -> str:
    """The minor version asked for, a key of ``VERSIONS``.

    Raises:
        BedError: the variable names another.
    """
    asked = os.environ.get(VARIABLE) or NEWEST
    if asked not in VERSIONS:
        raise BedError(f"{VARIABLE} is {asked!r}; it has to be one of {', '.join(VERSIONS)}")
    return asked


def require_newest(what: str) -> None:
    """Raise ``BedError`` where another was chosen: the kubelet here is the newest, too new for an older API server."""
    if chosen() != NEWEST:
        raise BedError(f"{what} is Kubernetes {NEWEST} here; {chosen()} is a control plane alone")


def module() -> str:
    """Folder below ``modules`` that the chosen control plane is built from."""
    return "kubernetes" if chosen() == NEWEST else f"kubernetes-{chosen()}"
