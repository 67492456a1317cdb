"""A node in a virtual machine: its own kernel, cgroup v2 and systemd, from Debian packages and without KVM."""

import os
from typing import Final

VARIABLE: Final = "GPU_SHARE_NODE"
"""``vm`` asks for a virtual machine instead of namespaces of this machine."""


def chosen() -> bool:
    """Return whether tests on nodes run in a virtual machine."""
    return os.environ.get(VARIABLE) == "vm"
