"""What a program of a framework does in a share: start, fill its memory, go on after the refusal, print a line."""

import json
import os
from collections.abc import Callable
from typing import Any

from enforcer.nvml.reader import NvmlReader

BLOCK_MIB, MOST_BLOCKS = 256, 400
"""So much is allocated at a time, and so often at most."""


def own_mib() -> int:
    """MiB that NVML says this process has on the first GPU."""
    reader = NvmlReader()
    reader.gpus()
    rows = reader.sample(os.environ["CUDA_VISIBLE_DEVICES"]).processes
    return sum(row.used_mib for row in rows if row.pid == os.getpid())


def run(product: Callable[[], object], block: Callable[[], object], refusal: type[BaseException], **more: Any) -> None:
    """Measure one framework and print the line.

    Args:
        product: multiplies two matrices on the GPU, and waits for it.
        block: allocates ``BLOCK_MIB`` and writes it.
        refusal: what the framework raises for want of memory.
        more: stands in the line as well.
    """
    product()
    found: dict[str, Any] = {**more, "with_product_mib": own_mib(), "refused": None}
    blocks: list[object] = []
    try:
        while len(blocks) < MOST_BLOCKS:
            blocks.append(block())
    except refusal as error:
        found["refused"] = type(error).__name__
    found |= {"at_most_mib": own_mib(), "blocks": len(blocks)}
    blocks.clear()
    product()
    print(json.dumps({**found, "works_after": True}), flush=True)
