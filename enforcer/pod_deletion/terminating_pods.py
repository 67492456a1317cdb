"""The pods of this node that are on their way out, as the watch on pods shows them."""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from enforcer.pod_deletion.deadlines import Object, TerminationDeadline, departure, now_terminating, running
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.runtime.manager import Wake
from gpushare.errors import ClusterError

GONE_SECONDS: Final = 30.0
"""So long after its object a pod's processes may live: a forced deletion takes the object first."""


class TerminatingPods:
    """Listens to the watch on pods. What was seen stays true while the API server is away."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._alive: set[str] = set()
        self._leaving: dict[str, TerminationDeadline] = {}
        self._gone: dict[str, float] = {}
        """When the object of a pod that may still run was last there."""
        self._named: dict[str, tuple[str, str]] = {}
        """Namespaces and names, by UID."""
        self._missing: set[str] = set()
        """Pods that the last list lacked: one list may be wrong, and who is released is gone for good."""
        self.doubted: Final = Wake()
        """Set when ``resync`` has something to ask."""
        self._wake: list[threading.Event] = []

    def subscribe(self, wake: threading.Event) -> None:
        """Set an event whenever a pod begins to leave, or has less time than before."""
        self._wake.append(wake)

    def replace(self, pods: Sequence[Object]) -> None:
        """Take in a whole list; a pod that is missing in two of them was deleted by force. See ``resync``."""
        uids = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            lacks = (self._alive | self._leaving.keys()) - uids - self._gone.keys()
            for uid in lacks & self._missing:
                self._lose(uid)
            self._missing |= lacks - self._gone.keys()
            self._alive &= self._missing
            for pod in pods:
                self._see(pod, alive=False)
            if self._missing:
                self.doubted.set()

    def resync(self, ask: Callable[[str, str], Object | None]) -> None:
        """Ask for each pod that a list lacked whether it is gone.

        Args:
            ask: for the pod of a namespace and name, ``None`` where there is none; raises ``ClusterError`` where nobody
                says, and then that pod stays what it was until the next list or question.
        """
        with self._lock:
            doubted = {uid: self._named[uid] for uid in self._missing}
        for uid, (namespace, name) in doubted.items():
            with suppress(ClusterError):
                self._answered(uid, ask(namespace, name))

    def _answered(self, uid: str, pod: Object | None) -> None:
        with self._lock:
            if uid not in self._missing:
                return  # the watch was faster
            if pod is None or pod["metadata"]["uid"] != uid:
                self._lose(uid)
            else:
                self._see(pod, alive=uid in self._alive)

    def on_event(self, change: str, pod: Object) -> None:
        """Take in one event of the watch."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            if change != "DELETED":
                self._see(pod, alive=uid in self._alive)
            elif running(pod):
                self._lose(uid)
            else:
                self._forget(uid)

    def of_gpu(self, uids: Collection[str]) -> list[TerminationDeadline]:
        """Those of these pods that are leaving."""
        with self._lock:
            self._expire()
            return [each for uid, each in self._leaving.items() if uid in uids]

    def _see(self, pod: Object, *, alive: bool) -> None:
        uid = pod["metadata"]["uid"]
        self._missing.discard(uid)
        wall = datetime.fromtimestamp(self._clock.wall(), UTC)
        found = departure(pod, self._clock.monotonic(), wall, self._leaving.get(uid), alive=alive)
        if found is None:
            # An API server that lags, or a selector that it left for a moment, may have made it look gone.
            self._forget(uid)
            self._alive.add(uid)
        elif found != self._leaving.get(uid):
            self._leave(found)
        self._named[uid] = pod["metadata"].get("namespace", ""), pod["metadata"].get("name", "")

    def _lose(self, uid: str) -> None:
        self._missing.discard(uid)
        self._leave(now_terminating(uid, self._clock.monotonic()))
        self._gone[uid] = self._clock.monotonic()

    def _leave(self, found: TerminationDeadline) -> None:
        self._alive.discard(found.uid)
        self._leaving[found.uid] = found
        for event in self._wake:
            event.set()

    def _forget(self, uid: str) -> None:
        self._alive.discard(uid)
        self._leaving.pop(uid, None)
        self._gone.pop(uid, None)
        self._named.pop(uid, None)
        self._missing.discard(uid)

    def _expire(self) -> None:
        for uid in [uid for uid, since in self._gone.items() if self._clock.monotonic() - since > GONE_SECONDS]:
            self._forget(uid)
