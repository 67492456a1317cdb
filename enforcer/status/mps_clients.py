"""MPS clients of each container: how many it has, how many its share counts as, and a warning above that.

A GPU serves 48 clients of all pods together. No container is killed for their number.
"""

from collections.abc import Sequence

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.quota.types import Quota
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from enforcer.status.node_status import Snapshot, mps_clients
from gpushare.contract import MAX_CLIENTS
from gpushare.reasons import Reason

Key = tuple[str, str]
"""Container id and GPU."""


class MpsClients:
    """Warns a container once each time it has more clients than its share counts as.

    Args:
        events: takes the warnings.
    """

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._warned: frozenset[Key] = frozenset()

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one sample. A container whose GPU cannot be read stays as it was."""
        above, unknown = set[Key](), set[Key]()
        for quota, count in counted(snapshot.views, snapshot.quotas):
            key = quota.container_id or "", quota.gpu
            if count is None:
                unknown.add(key)
            elif quota.clients is not None and count > quota.clients:
                above.add(key)
                if key not in self._warned:
                    self._events.record(_warning(quota, count))
        self._warned = frozenset(above | (self._warned & unknown))


def counted(views: Sequence[GpuSnapshot], quotas: Sequence[Quota]) -> list[tuple[Quota, int | None]]:
    """Count the clients of the containers whose claims consumed some; ``None`` where the GPU cannot be read."""
    by_gpu = {view.gpu.uuid: view for view in views}
    return [(quota, mps_clients(by_gpu.get(quota.gpu), quota)) for quota in quotas if quota.clients is not None]


def _warning(quota: Quota, count: int) -> UserMessage:
    note = (
        f"container {quota.container} has {count} MPS clients on {quota.gpu}, but its share reserves {quota.clients}: "
        f"a GPU serves {MAX_CLIENTS} clients in all, so other pods may get none; use fewer CUDA processes"
    )
    return UserMessage(quota=quota, reason=Reason.TOO_MANY_CLIENTS, note=note, action="Warn")
