from typing import Any

import pytest
from prometheus_client import generate_latest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.audit.record import ChainHead
from enforcer.detection.types import DetectorConfig, DetectorState
from enforcer.nvml.types import GpuSample
from enforcer.status.metrics import Metrics
from enforcer.status.mps_clients import MpsClients
from enforcer.status.node_status import Snapshot, status
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.support.wiring import Messages
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, holder, quota
from tests.unit.enforcer.test_loop import card

ONE = quota(clients=2)


def snapshot(*clients: int, can_read: bool = True, **changes: Any) -> Snapshot:
    used = (*(holder(pid, 100) for pid in (1, 2, 3, 4)), holder(9, 100, NEIGHBOUR))
    sample = GpuSample(uuid=GPU, total_mib=16384, used_mib=500, processes=(), clients=clients)
    seen = GpuSnapshot(gpu=card(GPU, 0), sample=sample, holders=used)
    blind = GpuSnapshot(gpu=card(GPU, 0), problem=NvmlError("it is gone", Reason.GPU_LOST))
    values: dict[str, Any] = {
        "node": "n", "time": "t", "now": 1.0, "enforcing": True, "views": (seen if can_read else blind,),
        "quotas": (ONE,), "state": DetectorState(), "rules": DetectorConfig(), "head": ChainHead(0, ""), "problems": (),
    }  # fmt: skip
    return Snapshot(**(values | changes))


def test_only_processes_of_the_container_in_the_list_of_mps_clients_count() -> None:
    (row,) = status(snapshot(1, 2, 9))["containers"]
    assert (row["mpsClients"], row["mpsClientsAllowed"]) == (2, 2)
    assert "MPS clients" not in row["sentence"]


def test_above_its_number_status_and_metrics_show_both() -> None:
    found = status(snapshot(1, 2, 3))
    sentence = found["containers"][0]["sentence"]
    assert sentence.endswith("; it has 3 MPS clients, more than the 2 that its share reserves")
    metrics = Metrics()
    metrics.latest.status = found
    lines = generate_latest(metrics.registry).decode()
    assert f'gpu_share_container_mps_clients{{container="model",gpu="{GPU}",namespace="asr",pod="tts-0"}} 3.0' in lines
    assert "gpu_share_container_mps_clients_allowed{" in lines


@pytest.mark.parametrize("changes", [{"quotas": (quota(),)}, {"can_read": False}], ids=["no clients", "unreadable"])
def test_what_is_not_known_is_null(changes: dict[str, Any]) -> None:
    (row,) = status(snapshot(1, 2, 3, **changes))["containers"]
    assert row["mpsClients"] is None


def test_a_container_is_warned_once_above_its_number_and_again_after_it_was_within() -> None:
    events = Messages()
    clients = MpsClients(events)
    for look in (snapshot(1, 2), snapshot(1, 2, 3), snapshot(1, 2, 3, 4), snapshot(can_read=False), snapshot(1, 2, 3)):
        clients.observe(look)
    assert [(each.reason, each.quota.container_id) for each in events.sent] == [(Reason.TOO_MANY_CLIENTS, CONTAINER)]
    assert "has 3 MPS clients" in events.sent[0].note
    assert "its share reserves 2" in events.sent[0].note
    clients.observe(snapshot(1))
    clients.observe(snapshot(1, 2, 3))
    assert len(events.sent) == 2
