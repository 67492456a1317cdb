"""When so many containers are due that the mistake is rather ours or the operator's, and when that is over. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, Self

from enforcer.detection.doubt import is_mistake
from enforcer.detection.kill_history import RecentKill, Tenant, tenant_of
from enforcer.quota.types import Quota

CALM: Final = 60.0
"""Seconds for which fewer than half of the containers must be over quota before the breaker closes by itself."""
OF_ONE: Final = 2
"""So many kills of one container count at most: one that is killed again and again is no proof against the others."""
AGAIN: Final = 3600.0
"""Seconds in which the same containers do not open the breaker a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What opened the breaker: the containers, and the pods that were there then.

    ``calm`` is since when fewer than half of the containers are over quota.
    """

    by: frozenset[Tenant]
    pods: frozenset[str]
    calm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Who is here: ``known`` have a share, ``there`` have started, ``over`` are over quota, ``idle`` have no share."""

    known: AbstractSet[Tenant]
    there: AbstractSet[Tenant]
    over: AbstractSet[Tenant]
    idle: AbstractSet[Tenant] = frozenset()

    @classmethod
    def of(cls, quotas: Sequence[Quota], over: AbstractSet[Tenant]) -> Self:
        """Sort containers; those that were given nothing do not count, for a tenant has any number of them."""
        known = {tenant_of(quota) for quota in quotas if quota.granted}
        there = {tenant_of(quota) for quota in quotas if quota.granted and quota.container_id is not None}
        return cls(known=known, there=there, over=over & known, idle={tenant_of(each) for each in quotas} - known)


def opened(
    wanted: AbstractSet[Tenant],
    present: Present,
    kills: Sequence[RecentKill],
    now: float,
    most: int,
    window: float,
    doubtful: AbstractSet[Tenant] = frozenset(),
) -> Opening | None:
    """Return what opens the breaker: these kills are too many (``is_storm``), or their quotas may be a mistake."""
    by = wanted | {kill.tenant for kill in kills if kill.tenant in present.known}
    mistake = bool(wanted) and is_mistake(by, doubtful)
    if not mistake and not is_storm(wanted, present, kills, now, most, window):
        return None
    return Opening(by=frozenset(by), pods=frozenset(pod for _, (pod, _) in present.known))


def is_storm(
    wanted: AbstractSet[Tenant], present: Present, kills: Sequence[RecentKill], now: float, most: int, window: float
) -> bool:
    """Return whether the kills that are wanted are too many of what runs here.

    That is more containers than ``most``, if they are most of all and most namespaces have most of their containers
    among them or over quota: a tenant that is most of neither cannot bring it about alone, nor with one violation among
    a neighbour's containers. Or none of at least two is within its quota or was spared, and that makes more kills than
    ``most``, of which ``OF_ONE`` of a container count. A kill counts for as long as its pod is there, and for
    ``window`` seconds.
    """
    if not wanted:
        return False
    lately = [
        each.tenant
        for each in kills
        if each.tenant in present.known or (now - each.at < window and each.tenant not in present.idle)
    ]
    there, hit = present.there | {*lately}, wanted | {*lately}
    if len(hit) == 1:
        return False
    if len(hit) > most and is_most(hit, there):
        return is_most(_concerned(hit | present.over, there), {namespace for namespace, _ in there})
    counted = sum(min(lately.count(each) + (each in wanted), OF_ONE) for each in hit)
    return counted > most and there <= hit | present.over


def _concerned(hit: AbstractSet[Tenant], there: AbstractSet[Tenant]) -> set[str]:
    """Return the namespaces most of whose containers are hit or over quota."""
    hits, all_of = (Counter(namespace for namespace, _ in each) for each in (hit, there))
    return {namespace for namespace, count in hits.items() if 2 * count > all_of[namespace]}


def is_most(some: AbstractSet[object], everything: AbstractSet[object]) -> bool:
    """Return whether the first are more than half of the second."""
    return 2 * len(some) > len(everything)


def watched(opening: Opening, present: Present, now: float) -> Opening | None:
    """Take in one sample while the breaker is open; ``None`` where that is over.

    It is once a pod of another namespace has come, or after ``CALM`` seconds in which fewer than half of the containers
    were over quota or the pods that opened it were gone.
    """
    namespaces = {namespace for namespace, _ in opening.by}
    came = any(namespace not in namespaces and pod not in opening.pods for namespace, (pod, _) in present.known)
    if came:
        return None
    remain = {pod for _, (pod, _) in opening.by} & {pod for _, (pod, _) in present.known}
    if remain and 2 * len(present.over) >= len(present.there):
        return replace(opening, calm=None)
    calm = now if opening.calm is None else opening.calm
    return None if now - calm >= CALM else replace(opening, calm=calm)


def remembered(trips: Mapping[Tenant, float], now: float) -> dict[Tenant, float]:
    """Keep who opened the breaker within the hour."""
    return {tenant: at for tenant, at in trips.items() if now - at < AGAIN}
