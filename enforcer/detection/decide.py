"""What one sample of the GPUs leads to: violations of quotas first, then borrowed memory to be given back. Pure."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from enforcer.attribution.snapshot import GpuSnapshot, UsageByContainer
from enforcer.detection.detector import evaluate
from enforcer.detection.lending import reclaim
from enforcer.detection.types import DetectorConfig, DetectorState, KillDecision
from enforcer.quota.types import Quota


def decide(  # noqa: PLR0913 - one argument per fact the answer depends on
    state: DetectorState, quotas: Sequence[Quota], views: Sequence[GpuSnapshot],
    readings: Mapping[str, UsageByContainer | None], now: float, rules: DetectorConfig,
    *, only: AbstractSet[str] | None, waiting: AbstractSet[str],
) -> tuple[DetectorState, tuple[KillDecision, ...]]:  # fmt: skip
    """Take in one sample of the GPUs of these ``views``; all else as ``evaluate`` and ``reclaim`` take it."""
    gpu_mib = {view.gpu.uuid: view.gpu.memory_mib for view in views}
    incomplete = frozenset(view.gpu.uuid for view in views if view.unknown_mib)
    state, found = evaluate(state, quotas, readings, now, rules, gpu_mib=gpu_mib, only=only, incomplete=incomplete)
    free_mib = {view.gpu.uuid: view.free_mib for view in views}
    state, more = reclaim(state, quotas, readings, free_mib, waiting, now, rules)
    return state, (*found, *more)
