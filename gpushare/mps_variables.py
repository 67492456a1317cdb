"""The variables by which CUDA finds its MPS daemon and learns its limits. Pure.

The webhook writes them into pods, the driver into CDI files; both take names and values from here.
"""

from typing import Final

from gpushare import contract

DAEMON: Final = {
    contract.MPS_PIPE_DIRECTORY: contract.PIPE_PATH,
    contract.MPS_LOG_DIRECTORY: contract.LOG_PATH,
}
"""Where a container finds the node's daemon."""
OURS: Final = (*DAEMON, contract.MPS_MEMORY_LIMIT)
"""Only gpu-share sets these."""
NAMES: Final = (*OURS, contract.MPS_THREAD_PERCENTAGE)
"""A tenant may set the percentage itself: it can only lower what its container gets."""


def limits(memory_mib: int | None, percent: int | None, gpus: int = 1) -> dict[str, str]:
    """Return the variables of the given limits; the one on memory has an entry for each GPU, such as ``0=4096M``."""
    memory = ",".join(f"{index}={memory_mib}M" for index in range(gpus))
    found = {} if memory_mib is None else {contract.MPS_MEMORY_LIMIT: memory}
    return found if percent is None else found | {contract.MPS_THREAD_PERCENTAGE: str(percent)}
