"""Lets new claims wait: of a namespace without budget on this node's GPUs, and for borrowed memory to come back."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from enforcer.detection.budget import Account, AccountKey, seconds_to_wait

WHY: Final = (
    "containers of namespace {0} used more GPU memory of this node than they reserved, too often or too much: this pod "
    "waits until {1:%H:%M:%S}Z, then 60 to 90 s for the kubelet; reduce the GPU memory use of these pods, or request "
    "more; kubectl get events -n {0} --field-selector reason=Killed names those that were killed; a new installation "
    "knows this as well, only gpu-share breaker --reset on the node forgets it"
)


class ClaimWait:
    """Says how long a new claim has to wait. The loop brings it up to date; other threads ask.

    They also say which pods wait in Prepare for memory that others borrowed, and the loop asks.
    """

    def __init__(self) -> None:
        self._latest: tuple[Mapping[AccountKey, Account], float] = {}, 0.0
        self._pods: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def update(self, accounts: Mapping[AccountKey, Account], now: float) -> None:
        """Take in the accounts after a sample, none while the breaker is open; ``now`` on the loop's clock."""
        self._latest = accounts, now

    def seconds(self, namespace: str) -> float:
        """Return the seconds that a new claim has to wait still; with 0 it is prepared."""
        accounts, now = self._latest
        return seconds_to_wait(accounts, namespace, now)

    def refusal(self, namespace: str) -> str:
        """Say why a new claim is not prepared now, and until when; empty where it is."""
        wait = self.seconds(namespace)
        return WHY.format(namespace, datetime.now(UTC) + timedelta(seconds=wait)) if wait > 0 else ""

    @property
    def pods(self) -> frozenset[str]:
        """UIDs of the pods that wait for borrowed memory."""
        return frozenset(self._pods)

    def after(self, pod_uid: str) -> frozenset[str]:
        """UIDs of the pods that wait for borrowed memory and came after this one, which waits as well."""
        pods = self._pods
        return frozenset(pods[pods.index(pod_uid) + 1 :]) - {pod_uid}

    @contextmanager
    def for_memory(self, pod_uid: str) -> Iterator[None]:
        """Have a pod known to wait, once for each of its claims."""
        with self._lock:
            self._pods = (*self._pods, pod_uid)
        try:
            yield
        finally:
            with self._lock:
                left = list(self._pods)
                left.remove(pod_uid)
                self._pods = tuple(left)
