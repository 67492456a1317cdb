"""How large a CUDA context is on the GPUs of a prepared claim, and whether it fits into the share. Pure.

Only the node knows both: the GPU that the scheduler chose, and whether the compute limit binds there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.nvml.types import Gpu
from enforcer.quota.types import Mode
from gpushare import contract, cuda_context
from gpushare.errors import PrepareError
from gpushare.quantity import format_mib
from gpushare.reasons import Reason

WHOLE: Final = 100
"""Percent of a GPU's SMs: what a container without a compute limit may use, and any container without MPS."""


@dataclass(frozen=True, slots=True)
class Context:
    """A CUDA context on a GPU of so many SMs, of which the container may use so many percent."""

    sms: int
    percent: int

    @property
    def mib(self) -> int:
        """What it takes of a share."""
        return cuda_context.context_mib(self.sms, self.percent)

    @property
    def smallest_share_mib(self) -> int:
        """The smallest share that is useful beside it."""
        return cuda_context.smallest_share_mib(self.sms, self.percent)


def context_of(claim: PreparedClaim, request: str, compute: int | None = None) -> Context | None:
    """Return the context of a request's containers; of several GPUs, on the largest.

    Args:
        claim: knows how its GPUs are shared.
        request: whose GPUs.
        compute: percent that one container has; ``None``: what all of them have.

    Returns:
        ``None`` in a claim of an enforcer that did not keep the number of SMs.
    """
    known = {each.gpu: each.sms for each in claim.seen}
    grants = claim.of(request)
    sms = [known.get(each.gpu or "", 0) for each in grants]
    mps = all(each.mode is Mode.MPS for each in grants)
    percent = (compute or claim.thread_percentage(request) or WHOLE) if mps else WHOLE
    return Context(max(sms), percent) if sms and all(sms) else None


def check_fits(claim: PreparedClaim, gpus: Iterable[Gpu]) -> None:
    """Refuse a share in which a CUDA context leaves nothing to use: no program could start in it.

    Args:
        claim: knows how its GPUs are shared, and its caps.
        gpus: of the node.

    Raises:
        PrepareError: the sentence names the smallest useful share.
    """
    models = {gpu.uuid: gpu.model for gpu in gpus}
    for limit in claim.limits:
        context = context_of(claim, limit.request, limit.compute)
        if context is None or limit.memory_mib > context.mib:
            continue
        cap = f" with {context.percent}% of its compute" if context.percent < WHOLE else ""
        where = " and ".join(sorted({models.get(each.gpu or "", "its GPU") for each in claim.of(limit.request)}))
        raise PrepareError(
            f"container {limit.container} has a share of {format_mib(limit.memory_mib)}, but a CUDA context alone "
            f"takes about {context.mib}Mi of it on {where}{cap}; ask for {format_mib(context.smallest_share_mib)} or "
            f"more, in {contract.MEMORY} or in the claim",
            Reason.BELOW_MINIMUM,
        )
