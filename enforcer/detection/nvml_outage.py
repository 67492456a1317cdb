"""NVML outages: since when a GPU cannot be read, why, and whether operators know. Its containers are spared. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpushare.errors import NvmlError
from gpushare.reasons import Reason

REPORT_AFTER: Final = 10.0
"""Seconds until it is reported to operators: a moment passes, as does a list that outgrew its buffer."""
EVERYWHERE: Final = "all"
"""Stands for the GPUs where they cannot even be counted."""


@dataclass(frozen=True, slots=True)
class NvmlOutage:
    """One GPU's: ``since`` when (boot clock, seconds), why as of the last look, and whether operators know."""

    since: float
    reason: Reason
    why: str
    reported: bool = False


Sight = Mapping[str, NvmlOutage]
"""The GPUs that cannot be read, by UUID or ``EVERYWHERE``."""


class Transition(StrEnum):
    """What became of the sight of a GPU."""

    LOST = "Lost"
    STAYS_LOST = "StaysLost"
    """For ``REPORT_AFTER`` seconds now: operators are to know."""
    BACK = "Back"


@dataclass(frozen=True, slots=True)
class OutageChange:
    """One turn; ``blind`` is what is or was known of it."""

    gpu: str
    turn: Transition
    blind: NvmlOutage


def update(before: Sight, problems: Mapping[str, NvmlError], now: float) -> tuple[Sight, tuple[OutageChange, ...]]:
    """Take in one sample.

    Args:
        before: what was known.
        problems: why GPUs could not be read, by UUID or ``EVERYWHERE``; one that is not named could be.
        now: seconds on the boot clock.
    """
    after = {gpu: _met(before.get(gpu), problem, now) for gpu, problem in problems.items()}
    lost = [OutageChange(gpu, Transition.LOST, blind) for gpu, blind in after.items() if gpu not in before]
    stay = [
        OutageChange(gpu, Transition.STAYS_LOST, blind)
        for gpu, blind in after.items()
        if blind.reported and not _knew(before, gpu)
    ]
    back = [OutageChange(gpu, Transition.BACK, blind) for gpu, blind in before.items() if gpu not in after]
    return after, (*lost, *stay, *back)


def _met(before: NvmlOutage | None, problem: NvmlError, now: float) -> NvmlOutage:
    since = now if before is None else before.since
    return NvmlOutage(since, problem.reason, problem.message, now - since >= REPORT_AFTER)


def _knew(before: Sight, gpu: str) -> bool:
    return gpu in before and before[gpu].reported


def operator_message(change: OutageChange, now: float) -> str | None:
    """Say what operators are to read; ``None`` where it is nothing to them."""
    who = "the GPUs of this node" if change.gpu == EVERYWHERE else f"GPU {change.gpu}"
    where = "on this node" if change.gpu == EVERYWHERE else "on it"
    if change.turn is Transition.STAYS_LOST:
        return f"the enforcer cannot read {who} and enforces no quota {where}: {change.blind.why}"
    if change.turn is Transition.BACK and change.blind.reported:
        return f"the enforcer can read {who} again, after {now - change.blind.since:.0f} s"
    return None


def sentence(container: str, blind: NvmlOutage | None, now: float) -> str:
    """Say of a container what an outage means to it."""
    why = "" if blind is None else f" for {max(0.0, now - blind.since):.0f} s ({blind.reason}: {blind.why})"
    return f"the enforcer does not enforce the quota of {container}: its GPU has been unreadable{why}"
