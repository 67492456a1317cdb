"""Events of the API server: on pods for their owners, on the Node for operators."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog

from enforcer.status.api_writer import ApiWriter
from enforcer.status.messages import UserMessage, truncate_note
from gpushare.contract import DRIVER
from gpushare.kube_client import EVENTS_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()
Object = dict[str, Any]
NOT_DELIVERED: Final = "event not delivered"
CONTROLLER: Final = f"{DRIVER}/enforcer"
NODE_EVENTS: Final = "default"
"""Namespace of Events on Nodes."""


class PodEventRecorder:
    """Records messages to pods' owners as Events.

    Args:
        cluster: the API server.
        node: this node's name.
        writer: delivers the Events.
    """

    def __init__(self, cluster: KubeClient, node: str, writer: ApiWriter) -> None:
        self._cluster, self._node, self._writer = cluster, node, writer

    def record(self, notice: UserMessage) -> None:
        """Take a message; never waits and never fails."""
        event = event_of(self._node, notice, datetime.now(UTC))
        where = path(EVENTS_V1, "events", namespace=event["metadata"]["namespace"])
        self._writer.put(NOT_DELIVERED, partial(self._cluster.create, where, event))


class LogEventRecorder:
    """Records messages to pods' owners in the log alone, where there is no API server."""

    def record(self, notice: UserMessage) -> None:
        """Log a message."""
        log.info("notice", reason=str(notice.reason), pod=notice.quota.pod, note=notice.note)


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One thing to tell an operator about a node's GPUs."""

    reason: Reason
    note: str
    warning: bool = True


class NodeEventRecorder:
    """Records messages to operators in the log and, if there is an API server, as Events on the Node.

    Args:
        cluster: the API server; ``None``: there is none.
        node: this node's name.
        writer: delivers the Events.
    """

    def __init__(self, cluster: KubeClient | None, node: str, writer: ApiWriter) -> None:
        self._cluster, self._node, self._writer = cluster, node, writer

    def record(self, news: NodeEvent) -> None:
        """Take a message; never waits and never fails."""
        (log.warning if news.warning else log.info)(news.note, reason=str(news.reason))
        if self._cluster is not None:
            where, event = (
                path(EVENTS_V1, "events", namespace=NODE_EVENTS),
                node_event(self._node, news, datetime.now(UTC)),
            )
            self._writer.put("node's event not delivered", partial(self._cluster.create, where, event))


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
        "note": truncate_note(notice.note),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": quota.namespace,
            "name": quota.pod,
            "uid": quota.pod_uid,
            "fieldPath": f"spec.containers{{{quota.container}}}",
        },
    }
