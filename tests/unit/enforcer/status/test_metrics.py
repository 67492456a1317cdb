"""The enforcer's metrics: what a GPU is, shares, problems by Reason, and one version of the names for all parts."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.detection.types import Decision, KillDecision
from enforcer.nvml.device_health import GpuConditions
from enforcer.nvml.types import Utilization
from enforcer.quota.types import LimitStatus
from enforcer.runtime.problem import Problem
from enforcer.status.metrics import LAST_KILLS, Metrics
from enforcer.status.node_status import status
from enforcer.status.utilization import UtilizationMonitor, by_container
from gpushare.errors import NvmlError
from gpushare.metrics_server import pages
from gpushare.reasons import Reason
from sidecar import metrics as of_sidecar
from sidecar import pod_status as of_pod
from tests.support.clock import FakeClock
from tests.support.wiring import NoReader, sampler
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, POD, holder, neighbour, quota
from tests.unit.enforcer.status.test_pod_status_files import seen, snapshot

WHERE = f'container="model",gpu="{GPU}",namespace="asr",pod="tts-0"'


def enforcer_page(*problems: Problem, mode: str = "time-slicing") -> str:
    """Metrics of an enforcer of which every gauge has a series."""
    quotas = quota(clients=1, reserved_mib=4096), neighbour()
    found = replace(
        snapshot(seen(holder(101, 1000)), seen(uuid=OTHER_GPU), quotas=quotas),
        standing=GpuConditions(modes={GPU: mode}), peaks={(POD, "model", GPU): 1500},
        utilization={(CONTAINER, GPU): 25}, gpu_utilization={GPU: 40}, problems=problems,
        proven={(CONTAINER, GPU): LimitStatus(state=Reason.IN_FORCE, backend="mps-v2", sentence="")},
    )  # fmt: skip
    metrics = Metrics()
    metrics.failed.labels("GpuFull", GPU).inc()
    metrics.released.labels("ClientTerminated").inc()
    metrics.signalled.labels("Killed").inc()
    metrics.latest.update(json.loads(json.dumps(status(found))))
    return pages(metrics.registry, lambda: None)("/metrics").body.decode()


def sidecar_page() -> str:
    """Metrics of a sidecar of which every gauge has a series."""
    data = {
        "time": "2026-11-20T22:16:05.123Z", "ready": True,
        "gpus": [{"uuid": GPU, "memoryMiB": 16000, "usedByOthersMiB": 10}],
        "containers": [
            {"container": "model", "gpu": GPU, "usedMiB": 1000, "peakMiB": 1500, "quotaMiB": 4096, "state": "Within"}
        ],
    }  # fmt: skip
    return of_sidecar.render(of_pod.parse(json.dumps(data).encode()), messages=1, rss_bytes=1).decode()


def test_shares_show_reserve_peak_and_utilization_and_what_is_unknown_has_no_series() -> None:
    lines = enforcer_page().splitlines()
    assert f"gpu_share_container_memory_peak_bytes{{{WHERE}}} 1.572864e+09" in lines
    assert f"gpu_share_container_utilization_ratio{{{WHERE}}} 0.25" in lines
    assert f'gpu_share_container_state{{{WHERE},state="Within"}} 1.0' in lines
    assert f"gpu_share_container_memory_reserved_bytes{{{WHERE}}} 4.294967296e+09" in lines
    assert [
        sum(f"container_{each}{{" in line for line in lines) for each in ("memory_peak_bytes", "utilization_ratio")
    ] == [1, 1]


@pytest.mark.parametrize(("mode", "containers"), [("mps", []), ("time-slicing", [f"{{{WHERE}}} 0.25"])])
def test_utilization_is_by_container_where_processes_use_the_gpu_by_themselves(
    mode: str, containers: list[str]
) -> None:
    """Under MPS NVML has one row, of the server (H100, driver 580.159.04): nobody knows whose kernels those are."""
    lines = [line.partition("utilization_ratio") for line in enforcer_page(mode=mode).splitlines() if line[0] != "#"]
    assert [rest for name, _, rest in lines if name == "gpu_share_container_" and rest] == containers
    assert [rest for name, _, rest in lines if name == "gpu_share_gpu_" and rest] == [f'{{gpu="{GPU}"}} 0.4']


def test_a_gpu_has_its_model_node_and_mode_and_no_counter_its_time_of_creation() -> None:
    page = enforcer_page(mode="mps")
    of_gpu = f'gpu="{GPU}",index="0",mode="mps",model="NVIDIA A100",node="gpu-7"'
    assert f"gpu_share_gpu_info{{{of_gpu}}} 1.0" in page.splitlines()
    assert f'gpu_share_gpu_info{{gpu="{OTHER_GPU}",index="0",mode="",' in page
    assert "_created" not in page
    assert "gpu_share_build_info{" in page


def test_a_problem_is_counted_by_its_reason_and_others_are_zero() -> None:
    lines = enforcer_page(Problem("no such record", Reason.AUDIT_RECORD_LOST), Problem("hangs", Reason.NVML_HUNG))
    assert 'gpu_share_enforcer_problem{reason="AuditRecordLost"} 1.0' in lines
    assert 'gpu_share_enforcer_problem{reason="NvmlHung"} 1.0' in lines
    assert 'gpu_share_enforcer_problem{reason="AuditUnwritable"} 0.0' in lines


def test_a_sidecar_names_what_it_shares_with_the_enforcer_alike() -> None:
    ours, theirs = ({line.partition("{")[0] for line in page.splitlines() if "{" in line}
                    for page in (sidecar_page(), enforcer_page()))  # fmt: skip
    assert {each for each in ours if each.startswith("gpu_share_container_")} < theirs
    assert "gpu_share_build_info" in ours & theirs


def test_a_namespace_counts_kills_from_zero_and_keeps_them_when_its_pods_are_gone() -> None:
    metrics = Metrics()

    def kills() -> float | None:
        return metrics.registry.get_sample_value("gpu_share_namespace_kills_total", {"namespace": "asr"})

    metrics.latest.update(json.loads(json.dumps(status(snapshot(seen(holder(101, 1000)), quotas=(quota(),))))))
    assert kills() == 0
    for result in (Reason.KILLED, Reason.BACK_UNDER_QUOTA):
        metrics.finish(KillDecision(decision=Decision.KILL, quota=quota(), used_mib=5000), result)
    metrics.latest.update({})
    assert kills() == 1
    results = [metrics.registry.get_sample_value("gpu_share_kill_results_total", {"reason": str(each)})
               for each in (Reason.KILLED, Reason.BACK_UNDER_QUOTA)]  # fmt: skip
    assert results == [1, 1]


def test_the_last_kills_have_a_series_each_with_pod_reason_and_time() -> None:
    metrics, begun = Metrics(), time.time()
    for number in range(LAST_KILLS + 1):
        decision = KillDecision(
            decision=Decision.KILL, quota=quota(pod=f"p-{number}"), used_mib=5000, reclaim_mib=number % 2
        )
        metrics.finish(decision, Reason.KILLED)
    metrics.finish(decision, Reason.KILLED)

    def when(pod: str, reason: Reason) -> float | None:
        labels = {"namespace": "asr", "pod": pod, "container": "model", "gpu": GPU, "reason": str(reason)}
        return metrics.registry.get_sample_value("gpu_share_kill_timestamp_seconds", labels)

    assert when("p-0", Reason.OVER_QUOTA) is None, "the oldest makes room"
    assert begun <= (when("p-31", Reason.RECLAIMED) or 0) <= (when("p-32", Reason.OVER_QUOTA) or 0) <= time.time()


def of(*holders: Any) -> GpuSnapshot:
    return seen(*holders)


def test_a_container_has_the_utilization_of_its_processes_together() -> None:
    both = of(holder(101, 10), holder(102, 10), holder(201, 10, NEIGHBOUR))
    assert by_container(both, {101: 30, 102: 80}) == {CONTAINER: 100, NEIGHBOUR: 0}
    assert by_container(both, {}) == {CONTAINER: 0, NEIGHBOUR: 0}
    assert by_container(both, {101: 30, 999: 60}) == {CONTAINER: 30, NEIGHBOUR: 0}


def test_where_the_driver_reports_no_utilization_none_is_shown() -> None:
    answers: list[Utilization | NvmlError | None] = [((101, 30), (999, 80)), None, NvmlError("hangs"), ((101, 5),)]
    asked: list[int] = []

    class Asked(NoReader):
        def utilization(self, _: str, after: int) -> Utilization | None:
            asked.append(after)
            answer = answers.pop(0)
            if isinstance(answer, NvmlError):
                raise answer
            return answer

    clock = iter(range(1, 99))
    monitor = UtilizationMonitor(sampler(lambda: [of(holder(101, 10))]), Asked(), FakeClock(lambda: next(clock) / 1e6))
    found = []
    for _ in range(4):
        monitor.turn()
        found.append((dict(monitor.latest), dict(monitor.gpus)))
    known = [({(CONTAINER, GPU): 30}, {GPU: 100}), ({(CONTAINER, GPU): 5}, {GPU: 5})]
    assert found == [known[0], ({}, {}), ({}, {}), known[1]]
    assert asked == [1, 2, 3, 4], "each time since the sample before"
