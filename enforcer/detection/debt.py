"""The debt of a container: seconds over quota that its grace periods did not punish. Pure.

A container that comes back under its quota in time has a new grace period next time. The debt does not: each sample
over quota adds to it, and it shrinks evenly while the container is within its quota. The detector keeps one for each
container and GPU, under the pod UID and the container's name, so that neither a restart of the container nor one of the
enforcer forgives it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from enforcer.detection.kill_history import ContainerKey
from enforcer.quota.types import Quota

DebtKey = tuple[ContainerKey, str]
"""Pod UID and container name, and the UUID of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """What one container owes on one GPU.

    ``seconds`` is the debt at the time ``at``; see ``left``. ``samples`` counts those over quota since the debt was
    forgotten last. ``rate`` is by how much it shrinks a second. ``paused``: the GPU could not be read since ``at``.
    ``warned``: the tenant knows. ``killed`` is when a kill of the container ended.
    """

    seconds: float = 0.0
    at: float = 0.0
    samples: int = 0
    rate: float = 0.0
    paused: bool = False
    warned: bool = False
    killed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """``credit`` is the debt without consequence, and ``refill`` the time in which all of it comes back; in seconds.

    A quota may have its own of both, by its namespace.
    ``first`` is what the first sample of a violation counts: nobody knows since when it lasts. ``memory`` is for how
    long a kill is remembered.
    """

    credit: float = 10.0
    refill: float = 300.0
    first: float = 0.5
    memory: float = 600.0

    def credit_of(self, quota: Quota) -> float:
        """Return a container's credit: one violation shorter than its grace period never uses it up."""
        return max(quota.debt_credit or self.credit, quota.grace_seconds + self.first)

    def rate_of(self, quota: Quota) -> float:
        """Return by how much a container's debt shrinks in each second within its quota."""
        return (quota.debt_credit or self.credit) / (quota.debt_refill or self.refill)


def key_of(quota: Quota) -> DebtKey:
    """Name the debt of a container on a GPU."""
    return (quota.pod_uid, quota.container), quota.gpu


def left(debt: Debt, now: float) -> float:
    """Return the debt in seconds at a later time, if the container was within its quota since."""
    rate = 0.0 if debt.paused else debt.rate
    return max(0.0, debt.seconds - max(0.0, now - debt.at) * rate)


def charge(debt: Debt, quota: Quota, used_mib: int, step: float | None, now: float, terms: Terms) -> Debt:
    """Take in one sample over quota, ``step`` seconds after the one before; ``None``: it is the first.

    The debt grows by ``min(1, (used - kill threshold) / quota)`` a second, and does not shrink meanwhile.
    """
    weight = min(1.0, (used_mib - quota.ceiling_mib) / max(1, quota.memory_mib))
    before = left(debt, now) if step is None else debt.seconds
    owed = min(before + weight * (terms.first if step is None else step), 2 * terms.credit_of(quota))
    rate = terms.rate_of(quota)
    return replace(debt, seconds=owed, at=now, samples=debt.samples + 1, rate=rate, paused=False)


def pause(debt: Debt | None, now: float) -> Debt:
    """Take in that the GPU cannot be read."""
    debt = debt or Debt(at=now)
    return debt if debt.paused else replace(debt, seconds=left(debt, now), at=now, paused=True)


def resume(debt: Debt, quota: Quota, now: float, terms: Terms) -> Debt:
    """Take in one sample within the quota."""
    if debt.paused:
        debt = replace(debt, at=now, paused=False)
    if debt.warned and left(debt, now) < terms.credit_of(quota) / 4:
        debt = replace(debt, warned=False)
    return debt


def settled(debts: Mapping[DebtKey, Debt], quota: Quota, now: float) -> dict[DebtKey, Debt]:
    """Take in that a kill has ended."""
    key = key_of(quota)
    return {**debts, key: replace(debts.get(key) or Debt(at=now), killed=now)}


def killed_lately(debt: Debt, now: float, terms: Terms) -> bool:
    """Return whether a kill is so recent that there is no second grace period."""
    return debt.killed is not None and now - debt.killed < terms.memory


def is_used_up(debt: Debt, quota: Quota, now: float, terms: Terms) -> bool:
    """Return whether nothing of the credit is left."""
    return left(debt, now) >= terms.credit_of(quota)


def aged(debts: Mapping[DebtKey, Debt], now: float, terms: Terms) -> dict[DebtKey, Debt]:
    """Forget debts that have been paid, and kills of long ago."""
    return {
        key: debt
        for key, debt in debts.items()
        if left(debt, now) > 0 or killed_lately(debt, now, terms)
    }  # fmt: skip
