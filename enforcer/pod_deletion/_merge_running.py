"""Puts what watches over endings together and runs it beside the loop."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from enforcer.attribution.cgroup import Attributor
from enforcer.mps.manager import MpsManager
from enforcer.pod_deletion._merge_served import DaemonClients
from enforcer.pod_deletion.client_release import Lane, LaneTools
from enforcer.pod_deletion.deadlines import Object
from enforcer.pod_deletion.terminating_pods import Departures
from enforcer.quota.informer import Books
from enforcer.quota.types import Quota
from enforcer.runtime._merge_repeat import every
from enforcer.status.metrics import Metrics
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, Cluster, path

EVERY: Final = 1.0
"""Seconds after which a lane looks again where nothing woke it, also after a bug."""


def departing(books: Books, cluster: Cluster, stopped: threading.Event) -> Departures:
    """Follow who is being deleted; of a pod that a list lacks the API server is asked by name."""
    departures = Departures()
    books.listeners.append(departures)
    settle = partial(departures.settle, partial(_pod, cluster))
    every(EVERY, "missing-pods", settle, stopped, departures.doubted)
    return departures


def _pod(cluster: Cluster, namespace: str, name: str) -> Object | None:
    """Read a pod; ``None`` where there is none. Raises ``ClusterError``."""
    try:
        return cluster.get(path(CORE_V1, "pods", namespace=namespace, name=name))
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def released_in_time(
    departures: Departures,
    manager: MpsManager,
    quotas: Callable[[], Sequence[Quota]],
    attributor: Attributor,
    metrics: Metrics,
    stopped: threading.Event,
) -> None:
    """Have MPS clients of pods that are being deleted released, on every GPU with a daemon of ours."""
    tools = LaneTools(
        departures=departures, quotas=quotas, attributor=attributor, metrics=metrics, stopped=stopped
    )  # fmt: skip

    def open_lane(gpu: str) -> None:
        lane = Lane(gpu, DaemonClients(manager, gpu), tools)
        departures.wake.append(lane.woken)
        every(EVERY, f"release-{gpu}", lane.turn, stopped, lane.woken)

    manager.follow(open_lane)
