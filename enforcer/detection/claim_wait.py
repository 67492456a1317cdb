"""Lets new claims of a namespace without budget on one of this node's GPUs wait. Pods that run keep their claims."""

from collections.abc import Mapping

from enforcer.detection.budget import Account, AccountKey, seconds_to_wait


class ClaimWait:
    """Says how long a new claim has to wait. The loop brings it up to date; other threads ask."""

    def __init__(self) -> None:
        self._latest: tuple[Mapping[AccountKey, Account], float] = {}, 0.0

    def update(self, accounts: Mapping[AccountKey, Account], now: float) -> None:
        """Take in the accounts after a sample, none while the breaker is open; ``now`` on the loop's clock."""
        self._latest = accounts, now

    def seconds(self, namespace: str) -> float:
        """Return the seconds that a new claim has to wait still; with 0 it is prepared."""
        accounts, now = self._latest
        return seconds_to_wait(accounts, namespace, now)
