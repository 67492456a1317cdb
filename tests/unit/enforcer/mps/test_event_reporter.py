"""What happens to MPS daemons becomes Events on the Node and a counter."""

from prometheus_client import CollectorRegistry, generate_latest

from enforcer.mps.event_reporter import IncidentCounts, tell
from enforcer.mps.incidents import Incident, Incidents
from enforcer.status.events import NodeNews, NodeReporter
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU


class Reporter(NodeReporter):
    def __init__(self) -> None:
        super().__init__(None, "gpu-7")
        self.told: list[NodeNews] = []

    def report(self, news: NodeNews) -> None:
        self.told.append(news)


def test_each_incident_is_told_once_and_counted() -> None:
    incidents, reporter, registry = Incidents(), Reporter(), CollectorRegistry()
    registry.register(IncidentCounts(incidents))
    incidents.tell(Incident(GPU, Reason.MPS_FAULT, "a fault"))
    incidents.tell(Incident(GPU, Reason.MPS_FAULT, "a fault"))
    incidents.tell(Incident(GPU, Reason.RECOVERED, "well again"))
    tell(incidents, reporter)
    tell(incidents, reporter)
    assert reporter.told == [
        NodeNews(Reason.MPS_FAULT, "a fault"),
        NodeNews(Reason.RECOVERED, "well again", warning=False),
    ]
    text = generate_latest(registry).decode()
    assert f'gpu_share_mps_incidents_total{{gpu="{GPU}",reason="MpsFault"}} 2.0' in text
