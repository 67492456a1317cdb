"""Kills of MPS clients: the server lets go of them first, and where it does not they are left alone."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.gpu.state import MpsFault
from tests.integration.processes.containers import Container, alive, wait_for
from tests.integration.processes.enforcing import Node
from tests.integration.processes.with_mps import machine_with_mps

pytestmark = pytest.mark.node


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    with machine_with_mps(tmp_path) as node:
        wait_for(lambda: "MpsStarted" in node.log(), 20)
        yield node


def test_the_server_lets_go_of_a_client_before_it_is_signalled(node: Node) -> None:
    greedy, modest = node.container(), node.container()
    neighbour = modest.tenant(node.sim, "--mib", "4096", "--kind", "mps")
    tenant = greedy.tenant(node.sim, "--mib", "9000", "--kind", "mps")
    node.allow(greedy.quota(node.gpu, 4096), modest.quota(node.gpu, 4096))
    wait_for(lambda: not alive(tenant), 20)
    wait_for(lambda: bool(node.records("OUTCOME")), 10)
    assert node.records("OUTCOME")[0]["targets"][0]["steps"] == "terminate_client,SIGTERM"
    assert alive(neighbour)
    assert node.sim.used_by_tenants(node.gpu) == 4096
    assert node.verified()


def test_a_client_the_server_does_not_let_go_of_gets_no_signal(node: Node) -> None:
    node.sim.fail_mps(MpsFault(command="terminate_client", answer="1\n"))
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000", "--kind", "mps")
    node.allow(container.quota(node.gpu, 4096))
    wait_for(lambda: bool(node.records("OUTCOME")), 20)
    node.looks(5)
    assert alive(tenant)
    assert node.records("OUTCOME")[0]["result"] == "TerminateFailed"
    assert len(node.records("INTENT")) == 1, "not tried twice a second"
    assert node.verified()


def test_a_plain_process_beside_mps_is_ended_by_signals_alone(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000", "--kind", "compute")
    node.allow(container.quota(node.gpu, 4096))
    wait_for(lambda: not alive(tenant), 20)
    wait_for(lambda: bool(node.records("OUTCOME")), 10)
    assert node.records("OUTCOME")[0]["targets"][0]["steps"] == "SIGTERM"


def test_who_dies_with_the_first_process_of_a_container_is_released_before(node: Node) -> None:
    """As in a container of its own pid namespace: the kernel kills a worker when the main process is ended."""
    container = node.container()
    container.spawn("unshare", "--pid", "--fork", "sh", "-c", "sleep 300 & exec sleep 301")
    wait_for(lambda: len(in_namespace(container)) == 2, 10)
    inside = in_namespace(container)
    node.sim.register(inside["1"], node.gpu, 9000, "mps")
    worker = next(pid for number, pid in inside.items() if number != "1")
    node.sim.register(worker, node.gpu, 500, "mps")
    node.allow(container.quota(node.gpu, 4096))
    wait_for(lambda: bool(node.records("OUTCOME")), 20)
    steps = {row["pid"]: row["steps"] for row in node.records("OUTCOME")[0]["targets"]}
    assert steps == {
        inside["1"]: "terminate_client,SIGKILL", worker: f"terminate_client,with {inside['1']}",
    }  # fmt: skip
    assert node.verified()


def in_namespace(container: Container) -> dict[str, int]:
    """Pids by what they are in their own pid namespace, of those that have one."""
    found = {}
    for pid in container.pids():
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            *_, outside, inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
            if outside != "NSpid:":
                found[inner] = pid
    return found
