"""Quotas that may be a mistake of ours or of an operator's: those of several namespaces open the circuit breaker. Pure.

A quota is in doubt for ten minutes after its kill threshold was lowered, and while it is below what the environment of
its container states. One namespace proves nothing: a tenant writes the environment of its pods, and may have the right
to lower its quotas.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from enforcer.detection.debt import DebtKey, key_of
from enforcer.detection.kill_history import Tenant, tenant_of
from enforcer.quota.types import Quota

LASTING: Final = 600.0
"""Seconds for which a lower kill threshold is in doubt."""
NAMESPACES: Final = 2
"""So many of them have to be concerned."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """The kill threshold of a container on a GPU in MiB, and when it was lowered, within the last ten minutes."""

    mib: int
    lowered: float | None = None


def followed(before: Mapping[DebtKey, Threshold], quotas: Sequence[Quota], now: float) -> dict[DebtKey, Threshold]:
    """Take in the quotas as they are now."""
    keys = [(key_of(quota), quota.ceiling_mib) for quota in quotas if quota.granted]
    return {key: _followed(before.get(key), mib, now) for key, mib in keys}


def _followed(before: Threshold | None, mib: int, now: float) -> Threshold:
    if before is None or mib > before.mib:
        return Threshold(mib)
    if mib < before.mib:
        return Threshold(mib, now)
    return Threshold(mib) if before.lowered is not None and now - before.lowered >= LASTING else before


def doubted(quotas: Sequence[Quota], thresholds: Mapping[DebtKey, Threshold]) -> frozenset[Tenant]:
    """Return the containers whose quota is in doubt."""
    return frozenset(
        tenant_of(quota)
        for quota in quotas
        if thresholds.get(key_of(quota), Threshold(0)).lowered is not None or _is_below_stated(quota)
    )


def _is_below_stated(quota: Quota) -> bool:
    return quota.granted and quota.stated_mib is not None and quota.memory_mib < quota.stated_mib


def is_mistake(due: AbstractSet[Tenant], doubtful: AbstractSet[Tenant]) -> bool:
    """Return whether those that are killed or due have quotas in doubt, of several namespaces."""
    return len({namespace for namespace, _ in due & doubtful}) >= NAMESPACES
