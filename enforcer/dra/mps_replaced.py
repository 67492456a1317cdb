"""Report the containers that keep the /dev/shm of an MPS pod that was replaced: they cannot reach the new server."""

from collections.abc import Callable, Sequence
from typing import Final

from enforcer.mps.shared_memory import HERE
from enforcer.quota.types import Quota
from enforcer.status.messages import Notice
from gpushare.reasons import Reason

NOTE: Final = (
    "the MPS pod of this node was replaced, and the /dev/shm of its clients with it: if container {container} started "
    "before, its programs cannot reach MPS; restart the container"
)


def device() -> int | None:
    """Return the device number of the enforcer's own /dev/shm, which is that of the MPS pod."""
    try:
        return HERE.stat().st_dev
    except OSError:
        return None


class Replaced:
    """Notices once that another MPS pod made another shared memory. For one thread.

    Args:
        clients: asked for the quotas of containers that run and use MPS.
        tell: takes notices to the owners of pods.
        device: tells one shared memory from another.
    """

    def __init__(
        self, clients: Callable[[], Sequence[Quota]], tell: Callable[[Notice], None],
        device: Callable[[], int | None] = device,
    ) -> None:  # fmt: skip
        self._clients, self._tell, self._device = clients, tell, device
        self._last: int | None = None

    def turn(self, *, made: bool) -> None:
        """Look once; ``made`` says whether an MPS pod has made a shared memory and not taken it away."""
        if not made:
            return
        last, self._last = self._last, self._device()
        if last is None or self._last in {None, last}:
            return
        for quota in self._clients():
            note = NOTE.format(container=quota.container)
            self._tell(Notice(quota=quota, reason=Reason.MPS_STOPPED, note=note, action="Restart"))
