"""Puts what watches over endings together and runs it beside the loop."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from enforcer.attribute import Attributor
from enforcer.cluster import Books
from enforcer.endings.departures import Departures
from enforcer.endings.release import Lane, LaneTools
from enforcer.endings.served import DaemonClients
from enforcer.metrics import Metrics
from enforcer.model import Quota
from enforcer.mps.manager import MpsManager
from enforcer.repeat import every

EVERY: Final = 1.0
"""Seconds after which a lane looks again where nothing woke it, also after a bug."""


def released_in_time(
    books: Books,
    manager: MpsManager,
    quotas: Callable[[], Sequence[Quota]],
    attributor: Attributor,
    metrics: Metrics,
    stopped: threading.Event,
) -> None:
    """Have MPS clients of pods that are being deleted released, on every GPU with a daemon of ours."""
    departures = Departures()
    books.listeners.append(departures)
    tools = LaneTools(
        departures=departures, quotas=quotas, attributor=attributor, metrics=metrics, stopped=stopped
    )  # fmt: skip

    def open_lane(gpu: str) -> None:
        lane = Lane(gpu, DaemonClients(manager, gpu), tools)
        departures.wake.append(lane.woken)
        every(EVERY, f"release-{gpu}", lane.turn, stopped, lane.woken)

    manager.follow(open_lane)
