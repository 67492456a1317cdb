"""The kills that count towards the kill rate limit of a node: time and container. Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from operator import attrgetter

from enforcer.quota.types import Quota

Place = tuple[str, str]
"""Pod UID and container name: what stays the same when a container restarts."""
Tenant = tuple[str, Place]
"""A place and, before it, its namespace."""


def tenant_of(quota: Quota) -> Tenant:
    """Name the place of a container and its namespace."""
    return quota.namespace, (quota.pod_uid, quota.container)


@dataclass(frozen=True, slots=True)
class Kill:
    """One decision to kill: whom, and when; while it is being carried out that is now.

    ``free``: the container was killed lately before, or is fresh in a namespace of which several pods were; such a kill
    takes nothing from the kill rate limit.
    """

    at: float
    namespace: str
    place: Place
    free: bool = False

    @property
    def tenant(self) -> Tenant:
        """Whose container it was."""
        return self.namespace, self.place


def younger(kills: Sequence[Kill], seconds: float, now: float) -> tuple[Kill, ...]:
    """Keep those of that many seconds, in order."""
    return tuple(sorted((kill for kill in kills if now - kill.at < seconds), key=attrgetter("at")))


def dated(kills: Sequence[Kill], places: AbstractSet[Place], at: float) -> tuple[Kill, ...]:
    """Give the last kill of each of those places another time."""
    last = _last(kills, places)
    return tuple(replace(kill, at=at) if number in last else kill for number, kill in enumerate(kills))


def without(kills: Sequence[Kill], place: Place) -> tuple[Kill, ...]:
    """Take the last kill of a place away."""
    last = _last(kills, {place})
    return tuple(kill for number, kill in enumerate(kills) if number not in last)


def _last(kills: Sequence[Kill], places: AbstractSet[Place]) -> AbstractSet[int]:
    return {*{kill.place: number for number, kill in enumerate(kills) if kill.place in places}.values()}
