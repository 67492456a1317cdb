"""Kills of MPS clients: the server lets go of them first, and where it does not they are left alone."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from enforcer.mps.daemon import MpsDaemon
from gpushare.errors import MpsError
from tests.fakegpu import mps_control
from tests.fakegpu.state import MpsFault
from tests.node.containers import alive, wait_for
from tests.node.enforcing import Node

pytestmark = [pytest.mark.node, pytest.mark.xdist_group("kill")]


@pytest.fixture(name="run")
def _run() -> Iterator[Path]:
    # Not pytest's own folder: its paths are too long for sockets.
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(name="node")
def _node(tmp_path: Path, run: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        node = Node(tmp_path, stack)
        program = mps_control.install(run, node.sim.folder)
        daemon = MpsDaemon(node.gpu, run / "mps" / "0", program, limit_mib=1)
        stack.callback(_stop, daemon)
        stack.callback(node.end)
        node.start(run=run, path=run)
        wait_for(lambda: node.sim.compute_mode(node.gpu) == 3, 10)
        yield node


def _stop(daemon: MpsDaemon) -> None:
    with suppress(MpsError):
        daemon.stop()


def test_the_server_lets_go_of_a_client_before_it_is_signalled(node: Node) -> None:
    greedy, modest = node.container(), node.container()
    neighbour = modest.tenant(node.sim, "--mib", "4096", "--kind", "mps")
    tenant = greedy.tenant(node.sim, "--mib", "9000", "--kind", "mps")
    node.allow(greedy.quota(node.gpu, 4096), modest.quota(node.gpu, 4096))
    wait_for(lambda: not alive(tenant), 20)
    wait_for(lambda: bool(node.records("OUTCOME")), 10)
    assert node.records("OUTCOME")[0]["targets"][0]["steps"] == "terminate_client,SIGTERM"
    assert alive(neighbour)
    assert node.sim.used(node.gpu) == 4096
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
