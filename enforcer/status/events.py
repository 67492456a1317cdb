"""Events of the API server: on pods for their owners, on the Node for operators."""

import threading
from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog

from enforcer.audit.log import utc_now
from enforcer.status.api_writer import ApiWriter
from enforcer.status.messages import Message, UserMessage, message, truncate_note
from gpushare.contract import ENFORCER_REPORTER
from gpushare.kube_client import EVENTS_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()
Object = dict[str, Any]
NOT_DELIVERED: Final = "event not delivered"
NODE_EVENTS: Final = "default"
"""Namespace of Events on Nodes."""
KEPT: Final = 20
"""Messages to one pod. With each at most 1 KiB its status file stays far below what the sidecar reads."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One thing to tell an operator about a node's GPUs."""

    reason: Reason
    note: str
    warning: bool = True


class EventRecorder:
    """Records messages as Events on pods and on the Node; without an API server, in the log alone.

    The last messages to each pod also go into its status file (``enforcer.status.pod_status_files``). Safe to use from
    several threads; nothing here waits or fails.

    Args:
        cluster: the API server; ``None``: there is none.
        node: this node's name.
        writer: delivers the Events.
    """

    def __init__(self, cluster: KubeClient | None, node: str, writer: ApiWriter) -> None:
        self._cluster, self._node, self._writer = cluster, node, writer
        self._lock = threading.Lock()
        self._kept: dict[str, deque[Message]] = {}

    def record(self, notice: UserMessage) -> None:
        """Record a message to the owner of a pod."""
        with self._lock:
            self._kept.setdefault(notice.quota.pod_uid, deque(maxlen=KEPT)).append(message(notice, utc_now()))
        if self._cluster is None:
            log.info("notice", reason=str(notice.reason), pod=notice.quota.pod, note=notice.note)
        self._put(NOT_DELIVERED, event_of(self._node, notice, datetime.now(UTC)))

    def record_on_node(self, news: NodeEvent) -> None:
        """Record a message to operators, in the log as well."""
        (log.warning if news.warning else log.info)(news.note, reason=str(news.reason))
        self._put("node's event not delivered", node_event(self._node, news, datetime.now(UTC)))

    def messages(self, pod_uid: str, before: tuple[Message, ...] = ()) -> tuple[Message, ...]:
        """Return the last messages to a pod, oldest first; ``before``: those of an enforcer before this one."""
        with self._lock:
            kept = self._kept.get(pod_uid, ())
            if before:
                kept = self._kept[pod_uid] = deque(dict.fromkeys((*before, *kept)), maxlen=KEPT)
            return tuple(kept)

    def forget(self, but: AbstractSet[str]) -> None:
        """Drop the messages to all pods but these, by UID."""
        with self._lock:
            for uid in self._kept.keys() - but:
                del self._kept[uid]

    def _put(self, failure: str, event: Object) -> None:
        if self._cluster is not None:
            where = path(EVENTS_V1, "events", namespace=event["metadata"]["namespace"])
            self._writer.put(failure, partial(self._cluster.create, where, event))


def node_event(node: str, news: NodeEvent, when: datetime) -> Object:
    """Write news as an Event on the Node; Nodes have no namespace, their Events stand in ``default``."""
    # The UID of a Node in Events is its name: that is what `kubectl describe node` looks for.
    regarding = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    kind = "Warning" if news.warning else "Normal"
    return _event(node, when, node, NODE_EVENTS) | {
        "action": "Share", "reason": str(news.reason), "type": kind, "note": truncate_note(news.note),
        "regarding": regarding,
    }  # fmt: skip


def _event(node: str, when: datetime, about: str, namespace: str) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # A prefix has to end in a letter, digit or dash: the API server checks it like a name with one letter more.
        "metadata": {"generateName": about[:200].rstrip(".-") + "-", "namespace": namespace},
        "eventTime": when.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": ENFORCER_REPORTER,
        "reportingInstance": node[:128],
    }


def event_of(node: str, notice: UserMessage, when: datetime) -> Object:
    """Write a notice as an Event of ``events.k8s.io/v1`` on the pod."""
    quota = notice.quota
    return _event(node, when, quota.pod, quota.namespace) | {
        "action": notice.action,
        "reason": str(notice.reason),
        "type": "Warning" if notice.warning else "Normal",
        "note": truncate_note(notice.note),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": quota.namespace,
            "name": quota.pod,
            "uid": quota.pod_uid,
            **({} if quota.whole_pod else {"fieldPath": f"spec.containers{{{quota.container}}}"}),
        },
    }
