"""The enforcer among things that fail: its log damaged or taken away, its disk full, nobody listening to it."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind
from tests.integration.processes.containers import alive, wait_for
from tests.integration.processes.enforcing import Node
from tests.support.need import missing

pytestmark = pytest.mark.node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        stack.callback(made.end)
        yield made


def test_a_log_that_was_edited_spares_everybody_until_it_is_moved_away(node: Node) -> None:
    audit = node.state / "audit"
    with AuditLog(audit) as log:
        log.append(Kind.WARNED, {"usedMiB": 1})
    edited = segments(audit)[0]
    edited.write_bytes(edited.read_bytes().replace(b'"usedMiB":1', b'"usedMiB":2'))
    before = edited.read_bytes()
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    node.start()
    wait_for(lambda: node.state_of(container) in {"Killing", "CoolingDown"}, 10)
    node.looks(3)
    assert alive(tenant)
    assert edited.read_bytes() == before
    assert any("was edited" in problem for problem in node.status()["problems"])
    audit.rename(node.state / "aside")
    wait_for(lambda: not alive(tenant), 30)
    wait_for(lambda: bool(node.records("OUTCOME")), 10)
    assert node.verified()
    node.looks(2)
    assert node.status()["problems"] == []


def test_a_kill_after_the_log_was_deleted_is_on_record_all_the_same(node: Node) -> None:
    first, second = node.container(), node.container()
    tenants = [first.tenant(node.sim, "--mib", "5000"), second.tenant(node.sim, "--mib", "5000")]
    node.allow(first.quota(node.gpu, 4096, grace_seconds=0.0), second.quota(node.gpu, 6000, grace_seconds=0.0))
    node.start()
    wait_for(lambda: bool(node.records("OUTCOME")), 20)
    for file in segments(node.state / "audit"):
        file.unlink()
    node.sim.register(tenants[1].pid, node.gpu, 9000)
    wait_for(lambda: not alive(tenants[1]), 20)
    wait_for(lambda: bool(node.records("OUTCOME")), 10)
    assert node.records("INTENT")[0]["pid"] == tenants[1].pid


@contextmanager
def deaf() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def test_with_nobody_to_listen_it_goes_on(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    with deaf() as writer, os.fdopen(os.dup(writer), "wb") as stderr:
        node.launch(stderr=stderr)
    wait_for(lambda: not alive(tenant), 20)
    wait_for(lambda: bool(node.records("OUTCOME")), 10)
    node.looks(3)
    assert node.verified()
    assert node.stop() == 0


def test_on_a_full_disk_it_starts_and_waits_for_room(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "9000")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", node.state], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        missing(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
        filler = node.state / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        with (node.state.parent / "enforcer.log").open("wb") as log:
            node.launch(stderr=log)
        time.sleep(2.0)
        assert node.enforcer
        assert node.enforcer.poll() is None, node.log()
        assert alive(tenant)
        filler.unlink()
        wait_for(lambda: not alive(tenant), 30)
        wait_for(lambda: bool(node.records("OUTCOME")), 10)
        assert node.verified()
        node.stop()
    finally:
        node.end()
        subprocess.run(["umount", node.state], check=True)


def test_without_its_lock_it_ends_nobody_and_stops_to_be_started_again(node: Node) -> None:
    container = node.container()
    tenant = container.tenant(node.sim, "--mib", "1000")
    node.allow(container.quota(node.gpu, 4096, grace_seconds=0.0))
    node.start()
    (node.state / "lock").unlink()
    node.sim.register(tenant.pid, node.gpu, 9000)
    assert node.enforcer
    assert node.enforcer.wait(30) == 1
    assert "removed or replaced" in node.log()
    assert alive(tenant)
    node.start()
    wait_for(lambda: not alive(tenant), 30)
    assert node.verified()
