"""Events of the API server: on pods for their owners, on the Node for operators."""

import queue
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from enforcer.status.messages import UserMessage, cut
from gpushare.contract import DRIVER
from gpushare.errors import ClusterError
from gpushare.kube_client import EVENTS_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()
Object = dict[str, Any]
QUEUE: Final = 256
ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 1.0
"""After the first failed attempt; doubled after each."""
POLL: Final = 0.1
CONTROLLER: Final = f"{DRIVER}/enforcer"
NODE_EVENTS: Final = "default"
"""Namespace of Events on Nodes."""


class PodEventRecorder:
    """Sends messages to pods' owners as Events. One that fails a few times is dropped and logged."""

    def __init__(self, cluster: KubeClient, node: str) -> None:
        self._cluster, self._node = cluster, node
        self._queue: queue.Queue[tuple[UserMessage, datetime]] = queue.Queue(QUEUE)

    def notify(self, notice: UserMessage) -> None:
        """Take a notice; never waits and never fails."""
        try:
            self._queue.put_nowait((notice, datetime.now(UTC)))
        except queue.Full:
            log.warning("notice dropped", reason=str(notice.reason), note=notice.note)

    def start(self) -> None:
        """Deliver from a thread that ends with the process, so that kills which end during shutdown are too."""
        threading.Thread(target=self._deliver, name="events", daemon=True).start()

    def flush(self, seconds: float) -> None:
        """Wait up to so long for what is queued."""
        deadline = time.monotonic() + seconds
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(POLL)

    def _deliver(self) -> None:
        while True:
            notice, when = self._queue.get()
            try:
                self._post(event_of(self._node, notice, when))
            except Exception:  # logged; whatever it is, it must not be the end of telling
                log.exception("event not delivered", reason=str(Reason.INTERNAL))
            finally:
                self._queue.task_done()

    def _post(self, event: Object) -> None:
        where = path(EVENTS_V1, "events", namespace=event["metadata"]["namespace"])
        for attempt in range(ATTEMPTS):
            try:
                self._cluster.create(where, event)
            except ClusterError as error:
                final = attempt == ATTEMPTS - 1 or error.final
                log.warning("event not delivered", reason=str(error.reason), final=final, error=error.message)
                if final:
                    return
                time.sleep(RETRY_SECONDS * 2**attempt)
            else:
                return


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One thing to tell an operator about a node's GPUs."""

    reason: Reason
    note: str
    warning: bool = True


class NodeEventRecorder:
    """Reports to operators, in the log and as Events on the Node. What cannot be delivered is dropped and logged."""

    def __init__(self, cluster: KubeClient | None, node: str) -> None:
        self._cluster, self._node = cluster, node

    def report(self, news: NodeEvent) -> None:
        """Say one thing."""
        (log.warning if news.warning else log.info)(news.note, reason=str(news.reason))
        if self._cluster is None:
            return
        body = node_event(self._node, news, datetime.now(UTC))
        try:
            self._cluster.create(path(EVENTS_V1, "events", namespace=NODE_EVENTS), body)
        except ClusterError as error:
            log.warning("event not delivered", reason=str(error.reason), final=True, error=error.message)


def node_event(node: str, news: NodeEvent, when: datetime) -> Object:
    """Write news as an Event on the Node; Nodes have no namespace, their Events stand in ``default``."""
    # The UID of a Node in Events is its name: that is what `kubectl describe node` looks for.
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    kind = "Warning" if news.warning else "Normal"
    return _event(node, when, node, NODE_EVENTS) | {
        "action": "Share", "reason": str(news.reason), "type": kind, "note": cut(news.note), "regarding": regarding,
    }  # fmt: skip


def _event(node: str, when: datetime, about: str, namespace: str) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # A prefix has to end in a letter, digit or dash: the API server checks it like a name with one letter more.
        "metadata": {"generateName": about[:200].rstrip(".-") + "-", "namespace": namespace},
        "eventTime": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": CONTROLLER,
        "reportingInstance": node[:128],
    }


def event_of(node: str, notice: UserMessage, when: datetime) -> Object:
    """Write a notice as an Event of ``events.k8s.io/v1`` on the pod."""
    quota = notice.quota
    return _event(node, when, quota.pod, quota.namespace) | {
        "action": notice.action,
        "reason": str(notice.reason),
        "type": "Warning" if notice.warning else "Normal",
        "note": cut(notice.note),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": quota.namespace,
            "name": quota.pod,
            "uid": quota.pod_uid,
            "fieldPath": f"spec.containers{{{quota.container}}}",
        },
    }
