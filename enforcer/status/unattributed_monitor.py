"""Asks now and then which processes ran kernels, for the hint of ``enforcer.status.unattributed``."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from enforcer.attribution.snapshot import View
from enforcer.runtime.background import every
from enforcer.status.unattributed import Growth, Sample, Track, sampled
from gpushare.errors import NvmlError

SECONDS: Final = 5.0
"""Between samples: five of them are half a minute."""
Kernels = Callable[[str], Sequence[int] | None]
"""Names the processes that ran kernels on a GPU since the last question; ``None`` where the driver does not say."""


class UnattributedMonitor:
    """Keeps a track of each GPU.

    Args:
        views: what was seen last.
        kernels: see there; may raise ``NvmlError``.
    """

    def __init__(self, views: Callable[[], Sequence[View]], kernels: Kernels) -> None:
        self._views, self._kernels = views, kernels
        self._tracks: dict[str, Track] = {}

    def growth(self) -> Mapping[str, Growth]:
        """Return what was found, by GPU; never waits."""
        return {gpu: track.growth for gpu, track in dict(self._tracks).items() if track.growth is not None}

    def turn(self) -> None:
        """Take a sample of each GPU that can be read."""
        for view in self._views():
            if view.sample is not None:
                before = self._tracks.get(view.gpu.uuid, Track())
                self._tracks[view.gpu.uuid] = sampled(before, Sample(view.unattributed_mib, self._ran(view)))

    def _ran(self, view: View) -> frozenset[str] | None:
        """Name the containers that ran kernels; ``None`` where one of the processes is of no container that is seen."""
        try:
            pids = self._kernels(view.gpu.uuid)
        except NvmlError:
            return None
        owners = {each.identity.pid: each.identity.owner for each in view.holders}
        found = [owners.get(pid) for pid in pids or ()]
        known = [owner.container_id for owner in found if owner is not None]
        return None if pids is None or len(known) < len(found) else frozenset(known)


def keep_sampling(
    views: Callable[[], Sequence[View]], kernels: Kernels, stopped: threading.Event
) -> UnattributedMonitor:
    """Sample until stopped."""
    monitor = UnattributedMonitor(views, kernels)
    every(SECONDS, "unattributed", monitor.turn, stopped)
    return monitor
