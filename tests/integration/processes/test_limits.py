"""Limits that prevent, by the enforcer as a process of its own, in real cgroups under the simulated driver."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.gpu import cgroup_limits, world
from tests.fakes.gpu.state import OutOfGpuMemoryError
from tests.integration.processes.containers import Container, alive, wait_for
from tests.integration.processes.enforcing import Node

pytestmark = pytest.mark.node
MIB = 1024 * 1024
NEWER = "615.71.09"
TOO_LATE = 60.0
"""Seconds for which something is awaited: there is a turn a second, and a loaded machine may take ten for one."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        made.sim.become(replace(made.sim.machine, driver=NEWER))
        stack.callback(made.end)
        yield made


def limit_of(node: Node, container: Container) -> int | None:
    path = str(container.cgroup)
    return cgroup_limits.hard_mib(node.sim.folder, node.gpu, path[path.index("/kubepods") :])


def proven(node: Node, container: Container) -> str | None:
    rows = [row for row in node.status()["containers"] if row["containerId"] == container.container_id]
    limit = rows[0]["limit"] if rows else None
    return None if limit is None else str(limit["state"])


def test_a_container_gets_its_limit_and_what_exceeds_it_is_refused_and_nobody_is_ended(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--gpu", node.gpu, "--mib", "1000")
    node.start()
    node.allow(container.quota(node.gpu, 2048))
    wait_for(lambda: limit_of(node, container) == 2048, TOO_LATE)
    with pytest.raises(OutOfGpuMemoryError, match="1048 MiB left"):
        node.sim.allocate(tenant.pid, node.gpu, 1049)
    node.sim.allocate(tenant.pid, node.gpu, 1048)
    node.looks(5)
    assert alive(tenant)
    assert not node.records("INTENT")


def test_another_quota_binds_the_running_container_at_once(node: Node) -> None:
    container = node.container()
    container.tenant(node.sim, "--gpu", node.gpu, "--mib", "1000")
    node.allow(container.quota(node.gpu, 2048))
    node.start()
    wait_for(lambda: limit_of(node, container) == 2048, TOO_LATE)
    node.allow(container.quota(node.gpu, 3072))
    wait_for(lambda: limit_of(node, container) == 3072, TOO_LATE)


def test_a_limit_is_proven_and_one_that_somebody_else_changed_is_set_again(node: Node, tmp_path: Path) -> None:
    container = node.container()
    container.tenant(node.sim, "--gpu", node.gpu, "--mib", "1000")
    node.allow(container.quota(node.gpu, 2048))
    node.start("--limit-verification-seconds", "2")
    wait_for(lambda: proven(node, container) == "InForce", TOO_LATE)
    (file,) = (node.sim.folder / "limits").glob(f"{node.gpu}*")
    text, changed = file.read_text(), tmp_path / "changed"
    assert f"hard={2048 * MIB}\t" in text
    # By a rename: half a file reads as no limit. It may be set again before anybody could look at it here.
    changed.write_text(text.replace(f"hard={2048 * MIB}", f"hard={9000 * MIB}"))
    changed.replace(file)
    wait_for(lambda: limit_of(node, container) == 2048, TOO_LATE)


def test_a_driver_that_keeps_a_limit_and_does_not_enforce_it_is_found(node: Node) -> None:
    world.change(node.sim, cgroup_limits_bind=0)
    container = node.container()
    node.allow(container.quota(node.gpu, 2048, on_exceed="warn"))
    container.tenant(node.sim, "--gpu", node.gpu, "--mib", "4000")
    node.start("--limit-verification-seconds", "2")
    wait_for(lambda: proven(node, container) == "LimitEscaped", TOO_LATE)


def test_the_operator_may_leave_it_to_watching(node: Node) -> None:
    container = node.container()
    container.tenant(node.sim, "--gpu", node.gpu, "--mib", "1000")
    node.allow(container.quota(node.gpu, 2048))
    node.start("--limit-backend", "watch-only")
    wait_for(lambda: "watch-only" in node.log(), TOO_LATE)
    node.looks(3)
    assert limit_of(node, container) is None


def test_a_back_end_that_cannot_work_here_is_a_problem(node: Node) -> None:
    node.sim.become(replace(node.sim.machine, driver="570.86.15"))
    node.start("--limit-backend", "driver-cgroup")
    wait_for(lambda: any("the enforcer uses watch-only" in each for each in node.status()["problems"]), TOO_LATE)
