"""Wait in Prepare until the memory that a claim reserves was given back by those that borrowed it."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.lending import NOTICE, unreturned_mib
from enforcer.dra.prepared_claim import PreparedClaim
from gpushare.errors import PrepareError
from gpushare.quantity import format_mib
from gpushare.reasons import Reason

PAUSE: Final = 0.5


def wait_until_returned(claim: PreparedClaim, watch: UsageSampler, goes_on: Callable[[], bool]) -> None:
    """Wait for a claim that is prepared already, so that the detector takes back what it reserves.

    Raises:
        PrepareError: not within the call; the claim stays prepared, and the kubelet retries.
    """
    while missing := missing_mib(claim, watch.sample()):
        if not goes_on():
            raise PrepareError(
                f"GPU memory is not free yet: other pods borrowed {format_mib(missing)} of what this pod reserves. "
                f"They were warned to give it back within {NOTICE:.0f}s, and are killed otherwise; the kubelet retries",
                Reason.GPU_MEMORY_IN_USE,
            )
        time.sleep(PAUSE)


def missing_mib(claim: PreparedClaim, views: Iterable[GpuSnapshot]) -> int:
    """Return the most MiB that borrowers of one GPU of a claim have to give back still."""
    return max((_missing_mib(claim, view) for view in views if view.gpu.uuid in claim.gpus), default=0)


def _missing_mib(claim: PreparedClaim, view: GpuSnapshot) -> int:
    quotas = [each for each in view.quotas if each.gpu == view.gpu.uuid]
    if not any(each.may_borrow for each in quotas):
        return 0
    if view.reading is None or all(each.claim_uid != claim.uid for each in quotas):
        return claim.mib_on(view.gpu.uuid)  # not known yet: the claim's own quotas come with the next sample
    return unreturned_mib(quotas, view.reading, view.free_mib)
