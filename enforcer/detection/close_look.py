"""Which GPUs to read more often than at the regular interval: those on which a kill may come next. Pure."""

from collections.abc import Sequence
from typing import Final

from enforcer.detection import budget
from enforcer.detection.detector import budget_left
from enforcer.detection.lending import short_gpus
from enforcer.detection.types import DetectorConfig, DetectorState, Phase
from enforcer.quota.types import OnExceed, Quota

SECONDS: Final = 0.08
"""Least time between two samples of such a GPU, at poll intervals of at least 0.16 s.

The three that a kill needs then span 0.16 s. An H100 (driver 580.159.04) still counted the memory of a killed process
for 0.08 to 0.14 s: a worker and its successor are not summed for a kill. A read takes 0.35 ms there, and 200 a second
cost programs nothing that shows (tests/gpu/results, cap.jsonl)."""
_SPARED: Final = {Phase.WITHIN, Phase.LOWERED, Phase.KILLING, Phase.POSTPONED}


def gpus_to_watch(
    state: DetectorState, quotas: Sequence[Quota], now: float, within: float, rules: DetectorConfig
) -> frozenset[str]:
    """Return the UUIDs of the GPUs on which a container may be killed before the next regular sample.

    That is one whose budget ends by then, any of a namespace that has none left, and one with borrowed memory while
    the GPU is short of it. What is spared for other reasons
    is left to the regular samples, so that nothing that lasts is read twelve times a second.

    Args:
        state: what the detector remembers.
        quotas: as it was given them.
        now: seconds on its clock.
        within: seconds until the next regular sample.
        rules: the detector's.
    """
    if state.open:
        return frozenset()
    near = frozenset(quota.gpu for quota in quotas if _is_near(state, quota, now, within, rules))
    return near | short_gpus(state, now, rules)


def _is_near(state: DetectorState, quota: Quota, now: float, within: float, rules: DetectorConfig) -> bool:
    if quota.on_exceed is OnExceed.WARN or quota.gpu not in state.sampled or quota.gpu in state.blind:
        return False
    if budget.seconds_empty(state.accounts, quota.namespace, quota.gpu, now):
        return True
    case = state.of(quota)
    return case.phase not in _SPARED and case.spared_until <= now and budget_left(state, quota, now, rules) <= within
