"""What a trouble changed is as before once it is over: status and metrics of a busy and of an idle container."""

import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fakes.gpu.state import Fault, MpsFault
from tests.integration.processes.containers import Container, wait_for
from tests.integration.processes.enforcing import Node
from tests.integration.processes.with_mps import machine_with_mps
from tests.testbed.cluster.ports import free_ports

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]
LOOKS: Final = ("--limit-verification-seconds", "1", "--mps-check-seconds", "1")
PROCESSES: Final = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
GPU_LOST: Final = 15
NOT_LOADED: Final = 9
LATE: Final = 60.0
PASSING: Final = frozenset({"time", "auditLog", "kills", "peakMib", "utilizationPercent"})
"""Of ``status.json``: what changes while nothing is wrong, or counts what has been."""
COUNTED: Final = re.compile(r"^process_|_utilization_ratio\{|_(total|bucket|sum|count|seconds)(\{| )")
"""Of the metrics: the same, counters, and how long or when."""


def away(node: Node) -> None:
    node.sim.fail(Fault(call="*", error=NOT_LOADED))


def lost(node: Node) -> None:
    node.sim.fail(Fault(call="*", error=GPU_LOST, gpu=node.gpu))


def hung(node: Node) -> None:
    node.sim.fail(Fault(call=PROCESSES, hold=1))


def crashed(node: Node) -> None:
    node.sim.fail(Fault(call=PROCESSES, signal=11))


def silent(node: Node) -> None:
    node.sim.fail_mps(MpsFault(command="get_server_list", answer="Cannot find MPS control daemon process"))


TROUBLES: Final = (
    away,
    hung,
    silent,
    pytest.param(lost, marks=pytest.mark.full),
    pytest.param(crashed, marks=pytest.mark.full),
)


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[tuple[Node, int]]:
    (port,) = free_ports(1)
    with machine_with_mps(tmp_path, *LOOKS, "--metrics", f"127.0.0.1:{port}") as node:
        wait_for(lambda: node.sim.compute_mode(node.gpu) == 3, 10)
        yield node, port


def shares(node: Node) -> tuple[Container, Container]:
    busy, idle = node.container(), node.container()
    node.allow(busy.quota(node.gpu, 4096), idle.quota(node.gpu, 2048))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M")
        busy.tenant(node.sim, "--mib", "1000", "--kind", "mps")
    return busy, idle


def lasting(found: Any) -> Any:
    """``status.json`` without what passes."""
    if isinstance(found, dict):
        return {key: lasting(value) for key, value in found.items() if key not in PASSING}
    return [lasting(each) for each in found] if isinstance(found, list) else found


def gauges(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if not line.startswith("#") and not COUNTED.search(line)]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_after_a_trouble_everything_is_as_before(place: tuple[Node, int], trouble: Callable[[Node], None]) -> None:
    node, port = place
    busy, idle = shares(node)

    def limit(container: Container) -> str | None:
        rows = [row for row in node.status()["containers"] if row["containerId"] == container.container_id]
        return (rows[0]["limit"] or {}).get("state") if rows else "not seen yet"

    wait_for(lambda: [limit(busy), limit(idle)] == ["InForce", None], LATE)
    before, measured = lasting(node.status()), gauges(port)
    trouble(node)
    wait_for(lambda: limit(busy) == "Unknown" and lasting(node.status()) != before, LATE)
    node.sim.fail()
    node.sim.fail_mps()
    wait_for(lambda: limit(busy) == "InForce", LATE)
    wait_for(lambda: lasting(node.status()) == before, LATE)
    wait_for(lambda: gauges(port) == measured, LATE)
