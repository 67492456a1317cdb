"""The kills that count towards the kill rate limit of a node: time and container. Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from operator import attrgetter

from enforcer.quota.types import Quota

ContainerKey = tuple[str, str]
"""Pod UID and container name: what stays the same when a container restarts."""
Tenant = tuple[str, ContainerKey]
"""A place and, before it, its namespace."""


def tenant_of(quota: Quota) -> Tenant:
    """Name the place of a container and its namespace."""
    return quota.namespace, (quota.pod_uid, quota.container)


@dataclass(frozen=True, slots=True)
class RecentKill:
    """One decision to kill: whom, and when; while it is being carried out that is now.

    ``free``: the container was killed lately before, or is fresh in a namespace of which several pods were; such a kill
    takes nothing from the kill rate limit.
    """

    at: float
    namespace: str
    place: ContainerKey
    free: bool = False

    @property
    def tenant(self) -> Tenant:
        """Whose container it was."""
        return self.namespace, self.place


def prune_older(kills: Sequence[RecentKill], seconds: float, now: float) -> tuple[RecentKill, ...]:
    """Keep those of that many seconds, in order."""
    return tuple(sorted((kill for kill in kills if now - kill.at < seconds), key=attrgetter("at")))


def with_time(kills: Sequence[RecentKill], places: AbstractSet[ContainerKey], at: float) -> tuple[RecentKill, ...]:
    """Give the last kill of each of those places another time."""
    last = _last(kills, places)
    return tuple(replace(kill, at=at) if number in last else kill for number, kill in enumerate(kills))


def excluding(kills: Sequence[RecentKill], place: ContainerKey) -> tuple[RecentKill, ...]:
    """Take the last kill of a place away."""
    last = _last(kills, {place})
    return tuple(kill for number, kill in enumerate(kills) if number not in last)


def _last(kills: Sequence[RecentKill], places: AbstractSet[ContainerKey]) -> AbstractSet[int]:
    return {*{kill.place: number for number, kill in enumerate(kills) if kill.place in places}.values()}
