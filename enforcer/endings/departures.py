"""The pods of this node that are on their way out, as the watch on pods shows them."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final

from enforcer.endings.terminating import Departure, Object, departure, leaving_now, running

GONE_SECONDS: Final = 30.0
"""So long after its object a pod's processes may live: a forced deletion takes the object first."""


def utc() -> datetime:
    """Read the wall clock."""
    return datetime.now(UTC)


class Departures:
    """Listens to the watch on pods. What was seen stays true while the API server is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], datetime] = utc) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._alive: set[str] = set()
        self._leaving: dict[str, Departure] = {}
        self._gone: dict[str, float] = {}
        """When the object of a pod that may still run was last there."""
        self.wake: Final[list[threading.Event]] = []
        """Set whenever a pod begins to leave, or has less time than before."""

    def listed(self, pods: Sequence[Object]) -> None:
        """Take in a whole list; a pod that is missing in it may have been deleted by force."""
        uids = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            for uid in (self._alive | self._leaving.keys()) - uids - self._gone.keys():
                self._lose(uid)
            self._alive.clear()
            for pod in pods:
                self._see(pod, alive=False)

    def changed(self, change: str, pod: Object) -> None:
        """Take in one event of the watch."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            if change != "DELETED":
                self._see(pod, alive=uid in self._alive)
            elif running(pod):
                self._lose(uid)
            else:
                self._forget(uid)

    def of(self, uids: Collection[str]) -> list[Departure]:
        """Those of these pods that are leaving."""
        with self._lock:
            self._expire()
            return [each for uid, each in self._leaving.items() if uid in uids]

    def _see(self, pod: Object, *, alive: bool) -> None:
        uid = pod["metadata"]["uid"]
        found = departure(pod, self._clock(), self._wall(), self._leaving.get(uid), alive=alive)
        if found is None:
            # An API server that lags, or a selector that it left for a moment, may have made it look gone.
            self._forget(uid)
            self._alive.add(uid)
        elif found != self._leaving.get(uid):
            self._leave(found)

    def _lose(self, uid: str) -> None:
        self._leave(leaving_now(uid, self._clock()))
        self._gone[uid] = self._clock()

    def _leave(self, found: Departure) -> None:
        self._alive.discard(found.uid)
        self._leaving[found.uid] = found
        for event in self.wake:
            event.set()

    def _forget(self, uid: str) -> None:
        self._alive.discard(uid)
        self._leaving.pop(uid, None)
        self._gone.pop(uid, None)

    def _expire(self) -> None:
        for uid in [uid for uid, since in self._gone.items() if self._clock() - since > GONE_SECONDS]:
            self._forget(uid)
