"""Whether a CUDA context fits into a share on the GPU that the scheduler chose: only the node knows the GPU. Pure."""

from collections.abc import Iterable
from typing import Final

from enforcer.dra.prepared_claim import ContainerLimit
from enforcer.nvml.types import Gpu
from gpushare import contract
from gpushare.cuda_context import context_mib, smallest_share_mib
from gpushare.errors import PrepareError
from gpushare.quantity import format_mib
from gpushare.reasons import Reason

WHOLE: Final = 100
"""Percent of a GPU's SMs: what a container without a compute limit may use."""


def check_fits(limit: ContainerLimit, gpus: Iterable[Gpu]) -> None:
    """Refuse a share that is smaller than a CUDA context on its GPUs: no program could start in it.

    Where NVML does not say how many SMs a GPU has, nothing is known to be too small.

    Raises:
        PrepareError: the sentence names the smallest useful share.
    """
    percent, gpu = limit.compute or WHOLE, max(gpus, key=lambda gpu: gpu.sms)
    needed = context_mib(gpu.sms, percent)
    if not gpu.sms or limit.memory_mib >= needed:
        return
    cap = f" with {percent}% of its compute" if percent < WHOLE else ""
    smallest = format_mib(smallest_share_mib(gpu.sms, percent))
    raise PrepareError(
        f"container {limit.container} has a share of {format_mib(limit.memory_mib)}, but a CUDA context alone takes "
        f"about {needed}Mi of it on {gpu.model}{cap}; ask for {smallest} or more, in {contract.MEMORY} or in the claim",
        Reason.BELOW_MINIMUM,
    )
