"""Fresh containers of a namespace of which several pods were killed lately: they have no grace period. Pure.

A tenant that creates pod after pod would have a grace period in each. Containers that have been within their quota for
a while keep theirs, so that the other pods of the namespace are not affected. Owner references are no key: tenants
write them. A fresh container that ends while it is over quota counts like one that was killed: else a pod that ends
before its grace period does would cost nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from enforcer.detection.kill_history import ContainerKey, RecentKill

SETTLED: Final = 60.0
"""Seconds within its quota after which a container is not fresh any more, whatever it does later."""
PODS: Final = 3
"""So many different pods of a namespace have to be killed on a node."""


def known_since(within: Mapping[ContainerKey, float] | None, place: ContainerKey, now: float) -> float:
    """Return since when a container was within its quota; ``None``: an enforcer without memory sees it running."""
    return max(0.0, now - SETTLED) if within is None else within.get(place, now)


def within_since(before: float, now: float, *, within: bool) -> float:
    """Return since when a container is within its quota; ``within`` is false also where that cannot be seen."""
    return before if within or now - before >= SETTLED else now


def is_fresh(within: Mapping[ContainerKey, float], place: ContainerKey, now: float) -> bool:
    """Return whether a container has not yet been within its quota for long enough."""
    return now - within.get(place, now) < SETTLED


def exceeding(kills: Sequence[RecentKill]) -> frozenset[str]:
    """Return the namespaces of which so many different pods were killed, or ended over quota; all of these count."""
    pods = {(kill.namespace, kill.place[0]) for kill in kills}
    namespaces = [namespace for namespace, _ in pods]
    return frozenset(each for each in namespaces if namespaces.count(each) >= PODS)
