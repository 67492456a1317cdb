"""Numbers of experiments: ranks, spreads, medians, ratios. Pure."""

import itertools
import statistics
from collections.abc import Sequence

PERCENT = 100


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed (nearest rank): always one that was measured."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // PERCENT)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """What is said of many measurements; nothing of none."""
    if not values:
        return {"n": 0}
    found = {"p50": percentile(values, 50), "p99": percentile(values, 99), "max": max(values)}
    return {"n": len(values), **{name: round(value, digits) for name, value in found.items()}}


def ratio(part: float, whole: float, digits: int = 3) -> float:
    """``part`` per ``whole``; 0 where there is no whole."""
    return round(part / whole, digits) if whole else 0.0


def loss_percent(without: Sequence[float], along: Sequence[float]) -> float:
    """By how many percent the median of ``along`` stays behind that of ``without``; negative where it is ahead."""
    before = statistics.median(without)
    return round((before - statistics.median(along)) / before * PERCENT, 3) if before else 0.0


def noise_percent(values: Sequence[float]) -> float:
    """How far measurements of the same thing differ, each from the one before it: the median step in percent.

    Neighbours in time are compared, so that a card that slowly grows warm is not taken for noise.
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    middle = statistics.median(values) if values else 0.0
    return round(statistics.median(steps) / middle * PERCENT, 3) if steps and middle else 0.0
