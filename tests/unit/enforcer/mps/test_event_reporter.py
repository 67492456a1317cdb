"""What happens to MPS daemons becomes Events on the Node and a counter."""

from prometheus_client import CollectorRegistry, generate_latest

from enforcer.mps.event_reporter import IncidentCollector, report_incidents
from enforcer.mps.incidents import Incident, IncidentLog
from enforcer.status.events import NodeEvent, NodeEventRecorder
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU


class Reporter(NodeEventRecorder):
    def __init__(self) -> None:
        super().__init__(None, "gpu-7")
        self.told: list[NodeEvent] = []

    def report(self, news: NodeEvent) -> None:
        self.told.append(news)


def test_each_incident_is_told_once_and_counted() -> None:
    incidents, reporter, registry = IncidentLog(), Reporter(), CollectorRegistry()
    registry.register(IncidentCollector(incidents))
    incidents.tell(Incident(GPU, Reason.MPS_FAULT, "a fault"))
    incidents.tell(Incident(GPU, Reason.MPS_FAULT, "a fault"))
    incidents.tell(Incident(GPU, Reason.RECOVERED, "well again"))
    report_incidents(incidents, reporter)
    report_incidents(incidents, reporter)
    assert reporter.told == [
        NodeEvent(Reason.MPS_FAULT, "a fault"),
        NodeEvent(Reason.RECOVERED, "well again", warning=False),
    ]
    text = generate_latest(registry).decode()
    assert f'gpu_share_mps_incidents_total{{gpu="{GPU}",reason="MpsFault"}} 2.0' in text
