"""NVML outages: since when NVML cannot read a GPU, why, and whether that was reported. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpushare.errors import NvmlError
from gpushare.reasons import Reason

REPORT_AFTER: Final = 10.0
"""Seconds until an outage is reported: NVML fails for a moment if a list outgrew its buffer."""
EVERYWHERE: Final = "all"
"""Key of the outage in which NVML cannot even list the GPUs."""


@dataclass(frozen=True, slots=True)
class NvmlOutage:
    """Outage of one GPU: ``since`` in seconds on the boot clock; reason and ``why`` as of the last sample."""

    since: float
    reason: Reason
    why: str
    reported: bool = False


Outages = Mapping[str, NvmlOutage]
"""Outages by UUID or ``EVERYWHERE``."""


class Transition(StrEnum):
    """How the outage of a GPU changed."""

    LOST = "Lost"
    STAYS_LOST = "StaysLost"
    """It has lasted for ``REPORT_AFTER`` seconds and is to be reported."""
    BACK = "Back"


@dataclass(frozen=True, slots=True)
class OutageChange:
    """One change; ``outage`` is the present one, or the one that ended."""

    gpu: str
    transition: Transition
    outage: NvmlOutage


def update(before: Outages, problems: Mapping[str, NvmlError], now: float) -> tuple[Outages, tuple[OutageChange, ...]]:
    """Return the outages after one sample, and what changed.

    Args:
        before: the outages before it.
        problems: errors of the GPUs that NVML could not read, by UUID or ``EVERYWHERE``.
        now: seconds on the boot clock.
    """
    after = {gpu: _outage(before.get(gpu), problem, now) for gpu, problem in problems.items()}
    lost = [OutageChange(gpu, Transition.LOST, outage) for gpu, outage in after.items() if gpu not in before]
    stay = [
        OutageChange(gpu, Transition.STAYS_LOST, outage)
        for gpu, outage in after.items()
        if outage.reported and not _was_reported(before, gpu)
    ]
    back = [OutageChange(gpu, Transition.BACK, outage) for gpu, outage in before.items() if gpu not in after]
    return after, (*lost, *stay, *back)


def _outage(before: NvmlOutage | None, problem: NvmlError, now: float) -> NvmlOutage:
    since = now if before is None else before.since
    return NvmlOutage(since, problem.reason, problem.message, now - since >= REPORT_AFTER)


def _was_reported(before: Outages, gpu: str) -> bool:
    return gpu in before and before[gpu].reported


def operator_message(change: OutageChange, now: float) -> str | None:
    """Return the message for operators; ``None`` if the change is not reported."""
    who = "the GPUs of this node" if change.gpu == EVERYWHERE else f"GPU {change.gpu}"
    where = "on this node" if change.gpu == EVERYWHERE else "on it"
    if change.transition is Transition.STAYS_LOST and change.outage.reason is Reason.PROCESS_HIDDEN:
        return f"the enforcer knows only a part of what each container holds of {who}: {change.outage.why}"
    if change.transition is Transition.STAYS_LOST:
        return f"the enforcer cannot read {who} and enforces no quota {where}: {change.outage.why}"
    if change.transition is Transition.BACK and change.outage.reported:
        return f"the enforcer can read {who} again, after {now - change.outage.since:.0f} s"
    return None


def container_message(container: str, outage: NvmlOutage | None, now: float) -> str:
    """Return what an outage means to a container."""
    lasted = "" if outage is None else f" for {max(0.0, now - outage.since):.0f} s ({outage.reason}: {outage.why})"
    return f"the enforcer does not enforce the quota of {container}: it could not read the GPU{lasted}"
