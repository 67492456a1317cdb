"""Lists and watches one kind of object, and lists again after each failure."""

import random
import time
from collections.abc import Callable, Iterator

from gpushare.errors import ClusterError, WatchBroken
from gpushare.kube_client import GARBAGE, KubeClient, Listing, Object


class Informer:
    """Keeps a list and its watch going for ever, with back-off; tells ``on_list`` and ``on_event`` what it sees.

    Whatever the other end says it goes on: what cannot be used is a failure like any other.

    Args:
        on_list: called with an iterator over all objects at each (re-)list; forget everything else. It may raise a
            ``ClusterError`` half way: then nothing is to be forgotten, and there will be another list.
        on_event: called with the type (ADDED, MODIFIED, DELETED) and object of each event.
        on_error: called with each failure; the follower goes on by itself.
    """

    MIN_DELAY: float = 0.2
    MAX_DELAY: float = 10.0
    RESUMES: bool = False
    """Whether to go on where a watch broke off that had got somewhere, and not to list again: for long lists."""

    def __init__(
        self,
        cluster: KubeClient,
        where: str,
        on_list: Callable[[Iterator[Object]], None],
        on_event: Callable[[str, Object], None],
        on_error: Callable[[ClusterError], None],
        **query: str,
    ) -> None:
        self._cluster, self._where, self._query = cluster, where, query
        self._on_list, self._on_event, self._on_error = on_list, on_event, on_error
        self._delay, self._version = self.MIN_DELAY, ""

    def run(self, stopped: Callable[[], bool]) -> None:
        """Follow until ``stopped()``; meant to be the whole life of a daemon thread."""
        while not stopped():
            try:
                self._once(stopped)
            except ClusterError as error:
                self._failed(error)
            except GARBAGE as error:
                self._failed(ClusterError(f"LIST or WATCH {self._where}: malformed answer: {error!r:.200}"))

    def _failed(self, error: ClusterError) -> None:
        self._on_error(error)
        time.sleep(self._delay * random.uniform(0.8, 1.2))
        self._delay = min(self._delay * 2, self.MAX_DELAY)

    def _once(self, stopped: Callable[[], bool]) -> None:
        listing = self._cluster.listing(self._where, **self._query)
        items = _current(listing)
        self._on_list(items)
        for _ in items:  # what nobody asked for has to be read too: the version comes last
            continue
        self._version = listing.version
        while not stopped():
            before = self._version
            try:
                self._watch()
            except WatchBroken as error:
                if not self.RESUMES or self._version == before:
                    raise
                self._failed(error)
            time.sleep(self.MIN_DELAY)  # one that ends as soon as it is asked for must not keep us busy

    def _watch(self) -> None:
        for kind, item in self._cluster.watch(self._where, self._version, **self._query):
            self._version = item["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                self._on_event(kind, item)
            self._delay = self.MIN_DELAY
            del item  # free it before the next one is parsed


def _current(listing: Listing) -> Iterator[Object]:
    """Yield the objects; raise ``WatchBroken`` where no event will tell that one of them is deleted."""
    yield from listing
    if listing.outdated:
        raise WatchBroken("an object was deleted while the list was read")
