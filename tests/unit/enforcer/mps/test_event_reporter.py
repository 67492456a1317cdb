"""What happens to MPS daemons becomes Events on the Node and a counter."""

from prometheus_client import CollectorRegistry, generate_latest

from enforcer.mps.event_reporter import IncidentCollector, IncidentReporter
from enforcer.mps.incidents import Incident, IncidentLog
from enforcer.status.events import NodeEvent
from gpushare.reasons import Reason
from tests.support.wiring import NodeEvents, fixed_modes, label_modes
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.quota.test_sharing_mode import labelled


def test_each_incident_is_notified_once_and_counted() -> None:
    incidents, events, registry = IncidentLog(), NodeEvents(), CollectorRegistry()
    reporter = IncidentReporter(incidents, fixed_modes(), events)
    registry.register(IncidentCollector(incidents))
    incidents.record(Incident(GPU, Reason.MPS_FAULT, "a fault"))
    incidents.record(Incident(GPU, Reason.MPS_FAULT, "a fault"))
    incidents.record(Incident(GPU, Reason.RECOVERED, "well again"))
    reporter.run_once()
    reporter.run_once()
    assert events.sent == [
        NodeEvent(Reason.MPS_FAULT, "a fault"),
        NodeEvent(Reason.RECOVERED, "well again", warning=False),
    ]
    text = generate_latest(registry).decode()
    assert f'gpu_share_mps_incidents_total{{gpu="{GPU}",reason="MpsFault"}} 2.0' in text


def test_a_mistyped_label_is_notified_once_and_again_after_it_was_right() -> None:
    modes, events = label_modes({}), NodeEvents()
    reporter = IncidentReporter(IncidentLog(), modes, events)
    for label in ("mpss", "mpss", "mps", "mpss"):
        modes.update_from_node(labelled(label))
        reporter.run_once()
    assert [each.reason for each in events.sent] == [Reason.MODE_UNKNOWN] * 2
