"""Feeds a ledger from watches of the API server, which may come and go."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpushare.contract import DRIVER
from gpushare.errors import ClusterError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.integration.controlplane.bed import CLAIMS, PODS, TEMPLATES
from tests.load.scale.fleet import offered
from tests.load.scale.ledger import Ledger

Object = dict[str, Any]
Tell = Callable[[str, Object, float], None]


class _Enough(Exception):
    """Nobody watches any more."""


class Feed:
    """Follows one kind of objects; of what a break of the watch hid it tells the outcome.

    Args:
        tell: called with the event's type, the object, and the moment it came.
    """

    def __init__(self, cluster: KubeClient, where: str, tell: Tell) -> None:
        self._tell, self._stopped, self._known = tell, threading.Event(), dict[str, Object]()
        self.listed = threading.Event()
        follower = Informer(cluster, where, self._on_list, self._on_event, self._on_error)
        threading.Thread(target=self._run, args=(follower,), daemon=True).start()

    def stop(self) -> None:
        """Tell nothing more. The thread ends with its next event, or with the watch."""
        self._stopped.set()

    def _run(self, follower: Informer) -> None:
        with suppress(_Enough):
            follower.run(self._stopped.is_set)

    def _on_list(self, items: Iterable[Object]) -> None:
        there = {each["metadata"]["uid"]: each for each in items}
        for uid in self._known.keys() - there.keys():
            self._on_event("DELETED", self._known[uid])
        for each in there.values():
            self._on_event("MODIFIED", each)
        self.listed.set()

    def _on_event(self, kind: str, item: Object) -> None:
        if self._stopped.is_set():
            raise _Enough
        if kind == "DELETED":
            self._known.pop(item["metadata"]["uid"], None)
        else:
            self._known[item["metadata"]["uid"]] = item
        self._tell(kind, item, time.monotonic())

    def _on_error(self, error: ClusterError) -> None:
        """A watch that breaks off is made again by the follower."""


@contextmanager
def watched(cluster: KubeClient, of: str) -> Iterator[Ledger]:
    """A ledger of a fleet's slices as they are now, that follows pods and claims."""
    ledger = Ledger.of(offered(cluster, of), DRIVER)
    claims = Feed(cluster, path(RESOURCE_V1, CLAIMS), ledger.claim_event)
    pods = Feed(cluster, path(CORE_V1, PODS), ledger.pod_event)
    try:
        for each in (claims, pods):
            assert each.listed.wait(30), "the API server does not answer"
        yield ledger
    finally:
        claims.stop()
        pods.stop()


@contextmanager
def template_names(cluster: KubeClient) -> Iterator[set[str]]:
    """Names of all claim templates seen while this lasts."""
    seen: set[str] = set()
    feed = Feed(cluster, path(RESOURCE_V1, TEMPLATES), lambda _, item, __: seen.add(item["metadata"]["name"]))
    try:
        assert feed.listed.wait(30), "the API server does not answer"
        yield seen
    finally:
        feed.stop()
