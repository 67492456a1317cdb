"""The loop that keeps claim templates, beside a scripted API server and a clock of the test's own."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpushare.reasons import Reason
from webhook.claim_templates.controller import Controller
from webhook.claim_templates.references import Key, TemplateRecord
from webhook.metrics import Metrics
from webhook.mutation.demand import Demand

if TYPE_CHECKING:
    from gpushare.errors import ClusterError


class Server:
    """Stores templates like the API server and, like its watch, tells the controllers what changed."""

    def __init__(self) -> None:
        self.stored: dict[Key, dict[str, Any]] = {}
        self.writes: list[tuple[str, Key]] = []
        self.told: list[tuple[str, Reason, str]] = []
        self.failures: list[ClusterError] = []
        self.watchers: list[Controller] = []
        self.watched = True
        self._lock = threading.Lock()
        self._version = 0

    def create(self, namespace: str, body: dict[str, Any]) -> str:
        key = (namespace, body["metadata"]["name"])
        with self._lock:
            self.writes.append(("create", key))
            if self.failures:
                raise self.failures.pop()
            if key in self.stored:
                return "exists"
            self._version += 1
            metadata = {**body["metadata"], "namespace": namespace, "uid": f"t{self._version}"}
            self.stored[key] = {**body, "metadata": {**metadata, "resourceVersion": str(self._version)}}
            self.show("ADDED", self.stored[key])
        return "ok"

    def delete(self, item: TemplateRecord) -> str:
        with self._lock:
            self.writes.append(("delete", item.key))
            there = self.stored.get(item.key)
            if there is None or there["metadata"]["uid"] != item.uid:
                return "gone"
            self.show("DELETED", self.stored.pop(item.key))
        return "ok"

    def tell(self, pod: dict[str, Any], reason: Reason, note: str) -> None:
        self.told.append((pod["name"], reason, note))

    def show(self, kind: str, item: dict[str, Any]) -> None:
        for watcher in self.watchers if self.watched else ():
            watcher.template_event(kind, item)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(
    server: Server,
    clock: Callable[[], float],
    metrics: Metrics,
    *,
    listed: bool = True,
    retention: float = 300.0,
    opted_in: Callable[[str], bool] = "team".__eq__,
    refusal: Callable[[str, Demand], tuple[Reason, str] | None] = lambda _namespace, _demand: None,
    may_wait: Callable[[], bool] = lambda: True,
) -> Controller:
    controller = Controller(
        server, metrics, opted_in=opted_in, refusal=refusal, retention=retention, clock=clock, may_wait=may_wait
    )
    server.watchers.append(controller)
    if listed:
        controller.reset_templates(list(server.stored.values()))
        controller.reset_pods([])
    return controller


def settle(controller: Controller) -> None:
    for write in controller.step():
        write()
    for tell in controller.events():
        tell()
