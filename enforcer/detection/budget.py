"""Budgets: how long containers may be over quota. Pure.

Each container has a budget on each GPU: its grace period. Time over quota uses it, and time within gives it back. All
containers of a namespace on a GPU have a second one together, and so have all namespaces: of seconds in which they
hold, above the kill thresholds of all of theirs together, as much as the whole GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from enforcer.quota.types import Quota

REFILL: Final = 24.0
"""Seconds within quota that give one second back. A container may be over quota for 2.4 s of each minute."""
LITTLE: Final = 0.05
"""Part of its budget that a namespace may have used and still not answer for what others used of the GPU's."""
OVERDRAFT: Final = 2.0
"""Seconds beyond a budget that workers and their successors do not explain: an H100 counted both for 0.14 s at most.

It is the least budget of a namespace, too: one of 0 s would never be used up."""
EVERYBODY: Final = ""
"""Stands for all namespaces together, in place of one's name."""
AccountKey = tuple[str, str]
"""Namespace and GPU UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What all containers of a namespace used of a GPU's time, in seconds of the whole GPU, at the time ``at``.

    ``size`` is their budget; ``over``: in the last sample they used more than the sum of their kill thresholds.
    """

    used: float = 0.0
    at: float = 0.0
    size: float = 0.0
    over: bool = False


def refilled(used: float, at: float, now: float) -> float:
    """Return what is used still at a later time, if all was within quota since."""
    return max(0.0, used - max(0.0, now - at) / REFILL)


def used_of(account: Account, now: float) -> float:
    """Return what is used of it still."""
    return account.used if account.over else refilled(account.used, account.at, now)


def seconds_empty(
    accounts: Mapping[AccountKey, Account], namespace: str, gpu: str, now: float, overdraft: float = 0.0
) -> float:
    """Return for how long a namespace has no budget left on a GPU, if all is within quota from now on.

    It has none once its own is used up. Where all namespaces together have used up the GPU's, it has none either,
    unless it used little of its own, and the GPU's comes back first. ``overdraft``: seconds that it may use beyond.
    """
    own, shared = accounts.get((namespace, gpu), Account()), accounts.get((EVERYBODY, gpu), Account())
    by_all = _beyond(shared, 1.0, now) - overdraft if _beyond(own, LITTLE, now) > 0 else 0.0
    return REFILL * (max(0.0, by_all) + max(0.0, _beyond(own, 1.0, now) - overdraft))


def _beyond(account: Account, part: float, now: float) -> float:
    """Return the seconds that were used beyond a part of the budget."""
    return used_of(account, now) - part * account.size


def seconds_to_wait(accounts: Mapping[AccountKey, Account], namespace: str, now: float) -> float:
    """Return for how long a new claim of a namespace waits: while it has no budget on one of the GPUs."""
    return max((seconds_empty(accounts, namespace, gpu, now) for name, gpu in accounts if name == namespace), default=0)


def answers(accounts: Mapping[AccountKey, Account], quota: Quota, now: float) -> bool:
    """Return whether a container's namespace is over quota as a whole on that GPU, and has no budget there."""
    own = accounts.get((quota.namespace, quota.gpu), Account())
    return own.over and seconds_empty(accounts, quota.namespace, quota.gpu, now) > 0


def charge(
    before: Mapping[AccountKey, Account], quotas: Sequence[Quota], used_mib: Mapping[str, int], gpu_mib: int, gpu: str,
    step: float, now: float,
) -> dict[AccountKey, Account]:  # fmt: skip
    """Take in one sample of a GPU, ``step`` seconds after the one before, and return its accounts.

    Args:
        before: the accounts.
        quotas: of those that may be killed there, also of containers that have not started: their memory is reserved.
        used_mib: by namespace, what these containers hold.
        gpu_mib: memory of the GPU.
        gpu: its UUID.
        step: seconds.
        now: as everywhere.
    """
    beyond, sizes = dict[str, int](), dict[str, float]()
    for quota in quotas:
        before_it = beyond.get(quota.namespace, used_mib.get(quota.namespace, 0))
        beyond[quota.namespace] = before_it - quota.ceiling_mib
        sizes[quota.namespace] = max(sizes.get(quota.namespace, OVERDRAFT), quota.grace_seconds)
    beyond[EVERYBODY] = sum(max(0, mib) for mib in beyond.values())
    sizes[EVERYBODY] = max(sizes.values(), default=0.0)
    parts = {(name, gpu): max(0, mib) / gpu_mib for name, mib in beyond.items()}
    stuck = _beyond(before.get((EVERYBODY, gpu), Account()), 1.0, now) > 0
    found = dict[AccountKey, Account]()
    for key in {*parts, *(key for key in before if key[1] == gpu)}:
        account, keeps = before.get(key, Account()), stuck and key[0] != EVERYBODY
        size = sizes.get(key[0], account.size)
        found[key] = _charged(account, parts.get(key, 0.0), step, size, now, keeps=keeps)
    return {key: each for key, each in found.items() if each.used > 0 or each.over}


def _charged(account: Account, part: float, step: float, size: float, now: float, *, keeps: bool) -> Account:
    """Charge a namespace that holds that part of the GPU above its kill thresholds.

    ``keeps``: nothing comes back, because all namespaces together have used up the GPU's budget. Else several of them
    would get as much back as one, each.
    """
    if not (part or account.over or keeps):
        return account if used_of(account, now) > 0 else Account()
    used = account.used if keeps or (account.over and part) else used_of(account, now)
    used = min(used + min(1.0, part) * step, 2 * size)
    return Account(used=used, at=now, size=size, over=part > 0)
