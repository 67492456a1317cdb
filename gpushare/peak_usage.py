"""What the containers of a pod use of a GPU at once, by the order in which they start. Pure."""

from collections.abc import Sequence
from typing import Final

INIT: Final = "init"
SIDECAR: Final = "sidecar"
"""Kinds of init containers: one that ends before the next starts, and one that goes on (``restartPolicy: Always``)."""


def peak_usage(shares: Sequence[tuple[str, int, int]]) -> tuple[int, int]:
    """Most that is used at once: (MiB, percent).

    Args:
        shares: (kind, MiB, percent) in the order of the containers' start.
    """
    lasting = [share for share in shares if share[0] != INIT]
    memory, compute = sum(share[1] for share in lasting), sum(share[2] for share in lasting)
    started_memory = started_compute = 0
    for kind, mib, percent in shares:
        if kind == INIT:
            memory, compute = max(memory, started_memory + mib), max(compute, started_compute + percent)
        elif kind == SIDECAR:
            started_memory, started_compute = started_memory + mib, started_compute + percent
    return memory, compute
