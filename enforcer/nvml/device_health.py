"""Whether a GPU is fit for new shares: decided over several samples, so that one bad answer taints nothing. Pure.

A device taint is what the scheduler sees of it; it leaves after the GPU has been well for a while.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpushare.reasons import Reason

LOOK_EVERY: Final = 2.0
"""Seconds between looks; the numbers below count looks."""
PATIENCE: Final = 3
"""Looks in a row that find what may be a passing failure."""
WELL_AFTER: Final = 15
XID_LOOKS: Final = 150
"""A critical error is an event and leaves no state behind, so the GPU counts as unhealthy for five minutes."""
CERTAIN: Final = frozenset({Reason.GPU_LOST, Reason.ECC_UNCORRECTABLE, Reason.CRITICAL_XID})
"""What does not pass by itself."""
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 63, 68, 69, 92, 94, 109})
"""Errors that programs cause, and news that call for nothing: they say nothing about the card."""


class Effect(StrEnum):
    """What a taint does: keep new shares away, also evict those that are there, or nothing (no taint is set)."""

    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Health:
    """One GPU's. ``unhealthy`` is why it is not fit, ``None`` where it is; the rest counts looks."""

    unhealthy: Reason | None = None
    bad: int = 0
    good: int = 0
    xid: int = 0


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """What is to be known of this node's GPUs beside what they hold, by UUID."""

    unhealthy: Mapping[str, Reason] = field(default_factory=dict)
    contended: Mapping[str, str] = field(default_factory=dict)
    """Who else offers it, as a sentence."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """How it is shared now, where it is."""
    backends: Mapping[str, str] = field(default_factory=dict)
    """Who keeps limits on it; one that could not be asked yet is left out."""
    objection: str | None = None
    """Why none of the node's GPUs may be shared now."""


def update_health(before: Health, seen: Reason | None, *, xid: bool = False) -> Health:
    """Take in one look.

    Args:
        before: what was known.
        seen: what is wrong now, ``None`` where nothing is.
        xid: a critical error happened since the last look.
    """
    left = XID_LOOKS if xid else max(0, before.xid - 1)
    found = seen or (Reason.CRITICAL_XID if left else None)
    if found is None:
        good = before.good + 1
        return Health(before.unhealthy if good < WELL_AFTER else None, 0, good, left)
    bad = before.bad + 1
    believed = found if found in CERTAIN or bad >= PATIENCE else None
    # The first reason stays: what follows from it must not rewrite the slice.
    return Health(before.unhealthy or believed, bad, 0, left)
