"""Keeps the claim templates that pods name: creates missing ones at once, deletes unused ones after a while.

Runs in every webhook process, without a leader: creating is idempotent, deleting names the exact version seen, and a
template that goes while a pod still names it is created again. It acts on stored pods only, so never for a dry run.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import structlog

from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from webhook import templates
from webhook.metrics import Metrics
from webhook.templates import Books, Existing, Key, Wanted

log = structlog.get_logger()

Object = dict[str, Any]
WRITERS: Final = 8
RETRY_SECONDS: Final = 1.0
"""A write that the watch does not confirm by then is tried again, then with ever longer pauses."""
MAX_RETRY_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 1.0


class Writer(Protocol):
    """Writes templates; the adapter for the API server is ``webhook.cluster.TemplateWriter``."""

    def create(self, namespace: str, body: Object) -> str:
        """Create, idempotently; returns a result for the metrics."""

    def delete(self, template: Existing) -> str:
        """Delete that one, idempotently; returns a result for the metrics."""


class Attempts:
    """When each key may be written again: not while the answer or the watch may still be on its way."""

    def __init__(self) -> None:
        self._next: dict[Key, tuple[float, float]] = {}

    def due(self, key: Key, now: float) -> bool:
        """Whether to try now; if so the next try is put off, each time for longer."""
        at, pause = self._next.get(key, (now, RETRY_SECONDS))
        if now < at:
            return False
        self._next[key] = (now + pause, min(pause * 2, MAX_RETRY_SECONDS))
        return True

    def forget(self, key: Key) -> None:
        """What was wanted has come about."""
        self._next.pop(key, None)


class Controller:
    """Books of pods and templates, and the loop that reconciles them.

    Args:
        template_for: rebuilds a pod's template from its spec.
        opted_in: whether a namespace takes part.
        retention: seconds an unused template stays.
    """

    def __init__(
        self,
        writer: Writer,
        metrics: Metrics,
        *,
        template_for: Callable[[Mapping[str, Any]], Object | None],
        opted_in: Callable[[str], bool],
        retention: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._metrics, self._template_for = writer, metrics, template_for
        self._opted_in, self._retention, self._clock = opted_in, retention, clock
        self._books, self._lock = Books(), threading.Lock()
        self._wake = threading.Event()
        self._creating, self._deleting = Attempts(), Attempts()
        self._unused_since: Mapping[Key, float] = {}
        self._lists: set[str] = set()

    @property
    def synced(self) -> bool:
        """Whether both pods and templates have been listed; nothing is written before."""
        return self._lists == {"pods", "templates"}

    def reset_pods(self, pods: list[Object]) -> None:
        """Know exactly these pods."""
        fresh = {pod["metadata"]["uid"]: self._wanted(pod) for pod in pods}
        with self._lock:
            self._books.pods = {uid: item for uid, item in fresh.items() if item}
        self._listed("pods")

    def pod_event(self, kind: str, pod: Object) -> None:
        """Take in one watch event."""
        uid = pod["metadata"]["uid"]
        item = None if kind == "DELETED" else self._wanted(pod)
        with self._lock:
            if item:
                self._books.pods[uid] = item
            else:
                self._books.pods.pop(uid, None)
        self._wake.set()

    def reset_templates(self, found: list[Object]) -> None:
        """Know exactly these templates."""
        ours = [item for item in map(templates.existing, found) if item]
        with self._lock:
            self._books.templates = {item.key: item for item in ours}
        self._listed("templates")

    def template_event(self, kind: str, template: Object) -> None:
        """Take in one watch event."""
        item = templates.existing(template)
        if item is None:
            return
        with self._lock:
            if kind == "DELETED":
                self._books.templates.pop(item.key, None)
                self._deleting.forget(item.key)
            else:
                self._books.templates[item.key] = item
                self._creating.forget(item.key)
        self._wake.set()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Reconcile until ``stopped()``; meant to be the whole life of a daemon thread."""
        with ThreadPoolExecutor(WRITERS, "templates") as pool:
            while not stopped():
                self._wake.wait(IDLE_SECONDS)
                self._wake.clear()
                for write in self.step():
                    pool.submit(write)

    def step(self) -> list[Callable[[], None]]:
        """One comparison. Returns the writes that are due now."""
        if not self.synced:
            return []
        now = self._clock()
        with self._lock:
            plan = templates.plan(
                self._books,
                opted_in=self._opted_in,
                unused_since=self._unused_since,
                now=now,
                retention=self._retention,
            )
            self._unused_since = plan.unused_since
            create = [item for item in plan.create if self._creating.due(item.key, now)]
            delete = [item for item in plan.delete if self._deleting.due(item.key, now)]
            count = len(self._books.templates)
        self._metrics.templates.set(count)
        self._metrics.templates_missing.set(len(plan.create))
        return [self._creation(item) for item in create] + [self._deletion(item) for item in delete]

    def _listed(self, what: str) -> None:
        self._lists.add(what)
        self._wake.set()

    def _wanted(self, pod: Object) -> Wanted | None:
        """What the pod wants. Its spec's claims never change, so what is known of it is not computed again."""
        known = self._books.pods.get(pod["metadata"]["uid"])
        key = templates.reference(pod)
        if known is not None and known.key == key:
            return known
        item = templates.wanted(pod, self._template_for)
        if item is not None and item.body is None:
            metadata = pod["metadata"]
            log.error(
                "the pod names a claim template that its own content does not give; it is not created",
                reason=Reason.TEMPLATE_MISMATCH,
                namespace=metadata.get("namespace"),
                pod=metadata.get("name"),
                template=item.key[1],
            )
        return item

    def _creation(self, item: Wanted) -> Callable[[], None]:
        body = item.body or {}
        return lambda: self._write("create", item.key, lambda: self._writer.create(item.key[0], body))

    def _deletion(self, item: Existing) -> Callable[[], None]:
        return lambda: self._write("delete", item.key, lambda: self._writer.delete(item))

    def _write(self, action: str, key: Key, write: Callable[[], str]) -> None:
        try:
            result = write()
        except ClusterError as error:
            result = "error"
            log.warning(
                "claim template not written", action=action, namespace=key[0], template=key[1], error=error.message
            )
        if result == "ok":
            reason = Reason.TEMPLATE_CREATED if action == "create" else Reason.TEMPLATE_DELETED
            log.info("claim template written", action=action, reason=reason, namespace=key[0], template=key[1])
        self._metrics.template_operations.labels(action, result).inc()
