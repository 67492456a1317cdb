"""The queries that join series of gpu-share and DCGM exporter, and the last kills of the dashboard, by promtool."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.processes.monitored import panels
from tests.support import pages
from tests.support.prometheus import concrete
from tests.support.promtool import promtool

pytestmark = pytest.mark.controlplane  # helm and promtool, which make integration brings

GPU: Final = "GPU-1"
OF: Final = f'job="gpu-share-enforcer",node="gpu-1",namespace="asr",pod="tts-0",container="model",gpu="{GPU}"'
OTHER: Final = OF.replace("tts-0", "stt-0")
CARD: Final = f'job="gpu-share-enforcer",node="gpu-1",gpu="{GPU}"'
DCGM: Final = f'job="dcgm-exporter",Hostname="gpu-1",gpu="0",UUID="{GPU}",modelName="NVIDIA H100 80GB HBM3"'
SERIES: Final = {
    f"gpu_share_container_memory_used_bytes{{{OF}}}": 3 * 2**30,
    f"gpu_share_container_memory_used_bytes{{{OTHER}}}": 2**30,
    f"gpu_share_container_memory_quota_bytes{{{OF}}}": 4 * 2**30,
    f"gpu_share_container_memory_quota_bytes{{{OTHER}}}": 4 * 2**30,
    f"gpu_share_gpu_memory_used_bytes{{{CARD}}}": 4 * 2**30,
    f'gpu_share_gpu_info{{{CARD},index="0",model="NVIDIA H100 80GB HBM3",mode="mps"}}': 1,
    f'gpu_share_kill_timestamp_seconds{{{OF},reason="OverQuota"}}': 1000,
    f"DCGM_FI_DEV_GPU_TEMP{{{DCGM}}}": 61,
    f"DCGM_FI_DEV_POWER_USAGE{{{DCGM}}}": 400,
    f"DCGM_FI_DEV_FB_USED{{{DCGM}}}": 4196,
}
NEVER: Final = "{pod='never'}"


def returned(query: str, folder: Path) -> list[tuple[str, float]]:
    """Labels and values that a query returns of these series: promtool writes the samples that nobody expects."""
    series = [{"series": name, "values": f"{value}x10"} for name, value in SERIES.items()]
    expected: list[Any] = [{"expr": query, "eval_time": "5m", "exp_samples": [{"labels": NEVER, "value": 0}]}]
    (folder / "test.json").write_text(json.dumps({"tests": [{"input_series": series, "promql_expr_test": expected}]}))
    got = promtool("test", "rules", "test.json", folder=folder).partition("got:")[2]
    return [(labels, float(value)) for labels, value in re.findall(r"\{(.*?)\} (\S+?)(?:,|$)", got, re.MULTILINE)]


def queries() -> list[str]:
    return [
        each
        for each in re.findall(r"\| `(.*?)` \|$", pages.read("docs/operators/dcgm.md"), re.MULTILINE)
        if "DCGM" in each
    ]


def test_each_query_joins_the_series_of_both(tmp_path: Path) -> None:
    temperature, power, difference = (returned(each, tmp_path) for each in queries())
    assert [value for _, value in temperature] == [61, 61]
    assert {'pod="stt-0"', 'pod="tts-0"'} <= {part for labels, _ in temperature for part in labels.split(", ")}
    assert sorted(value for _, value in power) == [100, 300]
    assert difference == [(f'gpu="{GPU}"', 100)]


def test_the_dashboard_names_the_model_the_pod_the_reason_and_the_time_of_a_kill(tmp_path: Path) -> None:
    (query,) = [each["targets"][0]["expr"] for each in panels() if each.get("title") == "Last kills"]
    ((row, when),) = returned(concrete(query, "1m"), tmp_path)
    for label in ('node="gpu-1"', 'model="NVIDIA H100 80GB HBM3"', 'pod="tts-0"', 'reason="OverQuota"'):
        assert label in row
    assert when == 1_000_000
