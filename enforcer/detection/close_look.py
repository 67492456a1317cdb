"""Which GPUs to read more often than at the regular interval: those on which a kill may come next. Pure."""

from collections.abc import Sequence
from typing import Final

from enforcer.detection.detector import container_key, grace_remaining
from enforcer.detection.types import DetectorState
from enforcer.quota.types import Quota

SECONDS: Final = 0.08
"""Least time between two samples of such a GPU, at poll intervals of at least 0.16 s.

The three that a kill needs then span 0.16 s. An H100 (driver 580.159.04) still counted the memory of a killed process
for 0.08 to 0.14 s: a worker and its successor are not summed for a kill. A read takes 0.35 ms there, and 200 a second
cost programs nothing that shows (tests/gpu/results, cap.jsonl)."""


def gpus_to_watch(state: DetectorState, quotas: Sequence[Quota], now: float, within: float) -> frozenset[str]:
    """Return the UUIDs of the GPUs on which a container over its quota may be killed before the next regular sample.

    What is spared for other reasons than its grace period is left to the regular samples, so that nothing that lasts is
    read twelve times a second.

    Args:
        state: what the detector remembers.
        quotas: as it was given them.
        now: seconds on its clock.
        within: seconds until the next regular sample.
    """
    return frozenset() if state.open else frozenset(q.gpu for q in quotas if _is_near(state, q, now, within))


def _is_near(state: DetectorState, quota: Quota, now: float, within: float) -> bool:
    case = state.cases.get((quota.container_id or "", quota.gpu))
    if case is None or not case.samples or case.blind or case.acting or case.postponed:
        return False
    left = grace_remaining(quota, case)  # none where only a warning is wanted
    return left is not None and left <= within and state.cooling.get(container_key(quota), now) <= now
