"""Evict the pods that hold shares, through the Eviction API, which respects PodDisruptionBudgets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog

from enforcer.quota.types import Quota
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.status.events import EventRecorder
from enforcer.status.eviction import evict
from enforcer.status.messages import UserMessage
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason

log = structlog.get_logger()

MOST: Final = 16
"""Pods asked for in one turn: the thread has other tasks."""
RETRY: Final = 5.0
"""Seconds after a refusal; doubled after each further one."""
MOST_RETRY: Final = 60.0
GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})
"""Conflict: the name belongs to another pod by now."""
NOTE: Final = "evicted: the GPU Operator upgrades the GPU driver of this node"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a pod was not evicted, and when to ask again."""

    error: str
    delay: float
    due: float


class PodEvictor:
    """Evicts pods, each once; asks again for those whose eviction is refused.

    Args:
        cluster: the API server.
        events: takes the messages to the owners.
    """

    def __init__(self, cluster: KubeClient, events: EventRecorder, clock: Clock = CLOCK) -> None:
        self._cluster, self._events, self._clock = cluster, events, clock
        self._evicted: frozenset[str] = frozenset()
        self._refused: dict[str, _Refusal] = {}
        self._tenants: Mapping[str, Quota] = {}

    def evict_pods(self, quotas: Iterable[Quota]) -> None:
        """Evict the pods of these quotas; at most ``MOST`` of them in one turn."""
        self._tenants = {quota.pod_uid: quota for quota in quotas}
        self._evicted &= self._tenants.keys()
        self._refused = {uid: refusal for uid, refusal in self._refused.items() if uid in self._tenants}
        due = [quota for uid, quota in self._tenants.items() if uid not in self._evicted and self._due(uid)]
        for quota in due[:MOST]:
            if not self._evict(quota):
                return

    def problems(self) -> list[str]:
        """Return which pods could not be evicted, and why."""
        return [
            f"{quota.namespace}/{quota.pod} is not evicted for the driver upgrade yet: {refusal.error}"
            for uid, refusal in dict(self._refused).items()
            if (quota := self._tenants.get(uid)) is not None
        ]

    def _due(self, uid: str) -> bool:
        return uid not in self._refused or self._clock.monotonic() >= self._refused[uid].due

    def _evict(self, quota: Quota) -> bool:
        """Ask once; return false where the API server does not answer, which the next pod need not wait for."""
        try:
            evict(self._cluster, quota.namespace, quota.pod, quota.pod_uid)
        except ClusterError as error:
            if error.status not in GONE:
                self._refuse(quota, error)
                return error.status != 0
        else:
            self._record(quota, Reason.DRIVER_UPGRADE, NOTE)
        self._refused.pop(quota.pod_uid, None)
        self._evicted |= {quota.pod_uid}
        return True

    def _refuse(self, quota: Quota, error: ClusterError) -> None:
        before = self._refused.get(quota.pod_uid)
        delay = RETRY if before is None else min(2 * before.delay, MOST_RETRY)
        self._refused[quota.pod_uid] = _Refusal(error.message, delay, self._clock.monotonic() + delay)
        log.warning(
            "the API server did not evict the pod; the enforcer retries", reason=str(Reason.EVICTION_REFUSED),
            namespace=quota.namespace, pod=quota.pod, seconds=delay, error=error.message,
        )  # fmt: skip
        if before is None and error.status != 0:
            note = f"the GPU Operator upgrades the GPU driver, and this pod is not evicted yet: {error.message}"
            self._record(quota, Reason.EVICTION_REFUSED, note)

    def _record(self, quota: Quota, reason: Reason, note: str) -> None:
        self._events.record(UserMessage(quota=quota, reason=reason, note=note, action="Evict"))
