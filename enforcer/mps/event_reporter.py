"""Telling operators what happened to MPS daemons: as Events on the Node, and counted."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from enforcer.mps.incidents import IncidentLog
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.status.events import EventRecorder, NodeEvent
from gpushare.reasons import Reason

EVERY: Final = 2.0


class IncidentCollector(Collector):
    """How many incidents there were, read off when somebody asks."""

    def __init__(self, incidents: IncidentLog) -> None:
        self._incidents = incidents

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counter."""
        family = CounterMetricFamily("gpu_share_mps_incidents", "Incidents of MPS daemons.", labels=["gpu", "reason"])
        for (gpu, reason), count in self._incidents.counts.items():
            family.add_metric([gpu, str(reason)], count)
        yield family


class IncidentReporter:
    """Records incidents as Events on the Node, and what is wrong with the label that selects the sharing mode.

    Args:
        incidents: of MPS daemons.
        modes: read the label.
        events: take the Events.
    """

    def __init__(self, incidents: IncidentLog, modes: SharingModeController, events: EventRecorder) -> None:
        self._incidents, self._modes, self._events = incidents, modes, events
        self._problem: str | None = None

    def run_once(self) -> None:
        """Record what was not recorded yet."""
        for incident in self._incidents.pending():
            warning = incident.reason is not Reason.RECOVERED
            self._events.record_on_node(NodeEvent(incident.reason, incident.note, warning=warning))
        before, self._problem = self._problem, self._modes.problem
        if self._problem not in {None, before}:
            self._events.record_on_node(NodeEvent(Reason.MODE_UNKNOWN, str(self._problem)))
