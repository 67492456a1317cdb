"""Wait in Prepare until the memory that a claim reserves was given back by those that borrowed it."""

import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.claim_wait import ClaimWait
from enforcer.detection.lending import SLACK_MIB, unreturned_mib
from enforcer.dra.prepared_claim import PreparedClaim
from gpushare.errors import PrepareError
from gpushare.quantity import format_mib
from gpushare.reasons import Reason

PAUSE: Final = 0.5


def with_loan_where_free(
    claim: PreparedClaim, others: Iterable[PreparedClaim], capacity: Mapping[str, int]
) -> PreparedClaim:
    """Return the claim without its limit where a GPU of it has not ``SLACK_MIB`` that nobody reserved.

    There is nothing to borrow there, and too little time to take it back. Later shares leave as much
    (``enforcer.resourceslices.controller``).

    Args:
        claim: to be prepared.
        others: the claims that are prepared on this node.
        capacity: MiB that shares can have, by GPU.
    """
    reserved = {gpu: sum(each.mib_on(gpu) for each in (claim, *others) if gpu in each.gpus) for gpu in claim.gpus}
    if all(mib + SLACK_MIB <= capacity.get(gpu, 0) for gpu, mib in reserved.items()):
        return claim
    return replace(claim, limits=tuple(replace(each, limit_mib=None) for each in claim.limits))


def wait_until_returned(
    claim: PreparedClaim, watch: UsageSampler, waits: ClaimWait, goes_on: Callable[[], bool]
) -> None:
    """Wait for a claim that is prepared already, so that the detector takes back what it reserves.

    It is known to ``waits``; who came later is not waited for.

    Raises:
        PrepareError: not within the call; the claim stays prepared, and the kubelet retries.
    """
    while missing := missing_mib(claim, watch.sample(), waits.after(claim.pod_uid)):
        if not goes_on():
            raise PrepareError(
                f"GPU memory is not free yet: other pods borrowed {format_mib(missing)} of what this pod reserves. "
                "They were warned to give it back, and are killed otherwise; the kubelet retries",
                Reason.GPU_MEMORY_IN_USE,
            )
        time.sleep(PAUSE)


def missing_mib(claim: PreparedClaim, views: Iterable[GpuSnapshot], later: AbstractSet[str] = frozenset()) -> int:
    """Return the most MiB that borrowers of one GPU of a claim have to give back still, ``later`` pods left out."""
    return max((_missing_mib(claim, view, later) for view in views if view.gpu.uuid in claim.gpus), default=0)


def _missing_mib(claim: PreparedClaim, view: GpuSnapshot, later: AbstractSet[str]) -> int:
    quotas = [each for each in view.quotas if each.gpu == view.gpu.uuid]
    if not any(each.may_borrow for each in quotas):
        return 0
    if view.reading is None or all(each.claim_uid != claim.uid for each in quotas):
        return claim.mib_on(view.gpu.uuid)  # not known yet: the claim's own quotas come with the next sample
    return unreturned_mib(quotas, view.reading, view.free_mib, later)
