"""Telling operators what happened to MPS daemons: as Events on the Node, and counted."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from enforcer.mps.incidents import IncidentLog
from enforcer.runtime.background import run_periodically
from enforcer.status.events import NodeEvent, NodeEventRecorder
from gpushare.reasons import Reason

EVERY: Final = 2.0


class IncidentCollector(Collector):
    """How many incidents there were, read off when somebody asks."""

    def __init__(self, incidents: IncidentLog) -> None:
        self._incidents = incidents

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counter."""
        family = CounterMetricFamily(
            "gpu_share_mps_incidents", "What happened to MPS daemons.", labels=["gpu", "reason"]
        )
        for (gpu, reason), count in self._incidents.counts.items():
            family.add_metric([gpu, str(reason)], count)
        yield family


def report_incidents(incidents: IncidentLog, reporter: NodeEventRecorder) -> None:
    """Tell of those that nobody was told of yet."""
    for incident in incidents.unsaid():
        reporter.report(NodeEvent(incident.reason, incident.note, warning=incident.reason is not Reason.RECOVERED))


def start_incident_reporter(
    incidents: IncidentLog,
    news: deque[NodeEvent],
    reporter: NodeEventRecorder,
    registry: CollectorRegistry,
    stopped: threading.Event,
) -> None:
    """Begin to count and tell, in a thread that ends with the process; ``news`` are other things to be told."""
    registry.register(IncidentCollector(incidents))

    def turn() -> None:
        report_incidents(incidents, reporter)
        while news:
            reporter.report(news.popleft())

    run_periodically(EVERY, "incidents", turn, stopped)
