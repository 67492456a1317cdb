"""Whether limits are in force, as status and metrics say it."""

from prometheus_client import generate_latest

from enforcer.audit.record import ChainHead
from enforcer.detection.types import DetectorConfig, DetectorState
from enforcer.quota.types import LimitStatus
from enforcer.status.metrics import Metrics
from enforcer.status.node_status import Snapshot, status
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, GPU, neighbour, quota


def proven(state: Reason) -> LimitStatus:
    return LimitStatus(state=state, backend="mps-v2", sentence="because")


def test_a_limit_that_was_looked_at_is_in_status_and_metrics_and_another_is_not() -> None:
    snapshot = Snapshot(
        node="gpu-7", time="", now=0.0, enforcing=True, views=(), quotas=[quota(), neighbour()], state=DetectorState(),
        rules=DetectorConfig(), head=ChainHead(0, ""), problems=(),
        proven={(CONTAINER, GPU): proven(Reason.LIMIT_ESCAPED)},
    )  # fmt: skip
    found = status(snapshot)
    assert [each["limit"] for each in found["containers"]] == [
        {"state": "LimitEscaped", "backend": "mps-v2", "sentence": "because"},
        None,
    ]
    metrics = Metrics()
    metrics.latest.status = found
    lines = [
        line for line in generate_latest(metrics.registry).decode().splitlines() if "gpu_share_limit_state{" in line
    ]
    labels = f'backend="mps-v2",container="model",gpu="{GPU}",namespace="asr",pod="tts-0",state="LimitEscaped"'
    assert lines == [f"gpu_share_limit_state{{{labels}}} 1.0"]
