"""Proof under MPS: real processes with environments of their own, clients of a daemon or not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes.containers import Container, alive, wait_for
from tests.integration.processes.enforcing import Node
from tests.integration.processes.with_mps import machine_with_mps

pytestmark = pytest.mark.node
PROOF = 2.0
"""Seconds between looks."""
LATE = 15.0
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS = ("--mib", "1000", "--kind", "mps")


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    with machine_with_mps(tmp_path, "--limit-verification-seconds", str(PROOF)) as node:
        wait_for(lambda: node.sim.compute_mode(node.gpu) == 3, 10)
        yield node


def tenant(node: Node, limit: str | None, *options: str) -> Container:
    """A container of 4 GiB with one program that was started with that limit."""
    container = node.container()
    node.allow(container.quota(node.gpu, 4096))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(LIMIT, raising=False)
        if limit is not None:
            patch.setenv(LIMIT, limit)
        container.tenant(node.sim, *(options or MPS))
    return container


def limit_of(node: Node, container: Container) -> dict[str, str]:
    rows = [row for row in node.status()["containers"] if row["containerId"] == container.container_id]
    return (rows[0]["limit"] if rows else None) or {"state": "", "sentence": ""}


@pytest.mark.parametrize(
    ("limit", "options", "state", "words"),
    [
        ("0=4096M", MPS, "InForce", "MPS client"),
        (None, MPS, "NotApplied", "without the MPS limit"),
        ("0=9000M", MPS, "LimitEscaped", "9000 MiB"),
        ("0=4096M,1=9000M", MPS, "LimitEscaped", "does not see"),
        ("0=4096M", ("--mib", "1000", "--kind", "compute"), "LimitEscaped", "not an MPS client"),
        ("0=4096M", (*MPS, "--fork", "1"), "PerProcessOnly", "2 processes"),
    ],
)
def test_what_a_tenant_did_is_seen_and_nobody_is_ended_for_it(
    node: Node, limit: str | None, options: tuple[str, ...], state: str, words: str
) -> None:
    container = tenant(node, limit, *options)
    wait_for(lambda: limit_of(node, container)["state"] == state, LATE)
    assert words in limit_of(node, container)["sentence"]
    node.looks(3)
    assert all(alive(process) for process in container.processes)
    assert not node.records("INTENT")


def test_an_escape_is_notified_in_the_log_once(node: Node) -> None:
    container = tenant(node, None)
    wait_for(lambda: limit_of(node, container)["state"] == "NotApplied", LATE)
    notices = [line for line in node.log().splitlines() if "notice" in line and "NotApplied" in line]
    assert len(notices) == 1


def test_with_the_compute_mode_kept_a_program_beside_mps_runs_and_is_named(tmp_path: Path) -> None:
    """``mps.setComputeMode: false``: the price is that only the enforcer limits what bypasses MPS."""
    with machine_with_mps(tmp_path, "--limit-verification-seconds", str(PROOF), "--keep-compute-mode") as node:
        node.looks(5)
        assert node.sim.compute_mode(node.gpu) == 0
        inside = tenant(node, "0=4096M")
        wait_for(lambda: limit_of(node, inside)["state"] == "InForce", LATE)
        beside = tenant(node, "0=4096M", "--mib", "1000", "--kind", "compute")
        wait_for(lambda: limit_of(node, beside)["state"] == "LimitEscaped", LATE)
        greedy = tenant(node, "0=4096M", "--mib", "9000", "--kind", "compute")
        wait_for(lambda: not any(map(alive, greedy.processes)), LATE)
        assert node.sim.compute_mode(node.gpu) == 0
