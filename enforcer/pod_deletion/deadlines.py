"""When the processes of a pod that is being deleted have to have let go of their GPU. Pure.

The kubelet sends SIGTERM, waits for the grace period, and kills. Killing a live MPS client can harm its neighbours, so
what is still a client towards the end is released first: late enough for a program that ends by itself, early enough
to be done with all of them. Times are seconds of one clock that never goes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from gpushare.raw_objects import moment

Object = Mapping[str, Any]

LEAD: Final = 2.0
"""Seconds before the end at which a pod is released, at the latest."""
LEAD_SHARE: Final = 0.1
"""The same as a share of the grace period, where that is more."""
PACE: Final = 0.5
"""Seconds between two pods of one GPU: while it lets go of a client, an MPS server refuses new ones."""
BUDGET: Final = 1.0
"""Seconds that each pod adds to the lead of those that leave with it: twice the pace, for a machine that is busy."""
MARGIN: Final = 1.0
"""Seconds before the end by which the last is to have been released."""
AT_ONCE: Final = 1.0
"""Grace periods up to this leave no time to wait in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationDeadline:
    """A pod on its way out.

    ``end`` is when the kubelet kills what is left, ``earliest`` when half of the grace period is over: before that
    nothing is done. ``stamp`` is the API server's word for the end, to see it changed.
    """

    uid: str
    grace: float
    end: float
    earliest: float
    stamp: str = ""

    def due(self, beside: int, asking: float = 0.0) -> float:
        """When to release it, where so many pods leave the same GPU, itself included. ``asking``: see ``lead``."""
        return max(self.earliest, self.end - lead_time(self.grace, beside, asking))


def lead_time(grace: float, pods: int, asking: float = 0.0) -> float:
    """Seconds before the end at which the first of so many pods has to be released; never over half of the grace.

    ``asking``: what it took to ask for the clients the last time. They are asked for again, and each of them costs
    about half of that: on a machine that is busy, or with a server that is, two seconds would be over by then.
    """
    return min(grace / 2, asking + max(LEAD, LEAD_SHARE * grace, max(BUDGET, asking) * pods))


def release_interval(left: int, seconds: float) -> float:
    """Seconds until the next pod's turn, of ``left`` pods, so many seconds before the first of them is killed.

    Twice as fast as would do: when the kubelet begins to kill, the machine is at its busiest.
    """
    return min(PACE, max(0.0, seconds - MARGIN) / (2 * max(1, left)))


def departure(
    pod: Object, now: float, wall: datetime, before: TerminationDeadline | None = None, *, alive: bool = False
) -> TerminationDeadline | None:
    """Read a pod that may be on its way out; ``None`` where it is not.

    Args:
        pod: the object.
        now: by our own clock.
        wall: the same moment by the wall clock.
        before: what was read of it before.
        alive: it was seen alive before, so its deletion has just begun: then half of its grace is left to it even where
            the API server's clock is ahead of, or behind, ours.
    """
    stamp = pod["metadata"].get("deletionTimestamp")
    if not stamp:
        return None
    if before is not None and stamp == before.stamp:
        return before
    grace = max(0.0, float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
    if grace <= AT_ONCE:
        return now_terminating(pod["metadata"]["uid"], now, stamp)
    announced = now + ((moment(stamp) or wall) - wall).total_seconds()
    end = min(announced, now + grace)
    found = TerminationDeadline(
        uid=pod["metadata"]["uid"], grace=grace, end=end, stamp=stamp,
        earliest=now + grace / 2 if alive else end - grace / 2,
    )  # fmt: skip
    return found if before is None else _sooner(before, found)


def now_terminating(uid: str, now: float, stamp: str = "") -> TerminationDeadline:
    """Read a pod that is given no time, or whose object is gone while its processes may live."""
    return TerminationDeadline(uid=uid, grace=0.0, end=now, earliest=now, stamp=stamp)


def running(pod: Object) -> bool:
    """Whether some container of a pod ran when its status was written last."""
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return any("running" in (each.get("state") or {}) for each in every)


def by_deadline(
    departures: Sequence[TerminationDeadline], now: float, beside: int, asking: float = 0.0
) -> list[TerminationDeadline]:
    """Of the pods that leave one GPU and still use it, those to release now: who is killed first comes first.

    ``beside`` counts those of them that have been released already as well: the last of many must not be left for when
    the machine is busy with killing the first. ``asking``: see ``lead``.
    """
    ready = [each for each in departures if each.due(beside, asking) <= now]
    return sorted(ready, key=lambda each: each.end)


def _sooner(before: TerminationDeadline, found: TerminationDeadline) -> TerminationDeadline:
    """A deletion asked for again can only shorten the time."""
    return replace(found, end=min(before.end, found.end), earliest=min(before.earliest, found.earliest))
