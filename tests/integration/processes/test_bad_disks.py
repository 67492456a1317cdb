"""The whole enforcer on a disk that is full, and on one that is read-only: nothing is done that is not on record."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enforcer.audit.log import FOLDER
from enforcer.audit.reserved_space import NAME as RESERVED
from gpushare.reasons import Reason
from tests.integration.processes.containers import alive, wait_for
from tests.integration.processes.enforcing import POLL, Node
from tests.support.need import missing

pytestmark = pytest.mark.node
GRACE = 0.5
DISK_BYTES = 4 * 2**20


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    """Its state directory is a small disk of its own."""
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        size = f"size={DISK_BYTES},mode=0700"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", made.state], check=False)
        if mounted.returncode != 0:
            missing("no small disk can be mounted here (not root)")
        stack.callback(subprocess.check_call, ["umount", "--lazy", str(made.state)])
        stack.callback(made.end)
        yield made


def fill(disk: Path) -> Path:
    """Leave no byte; the disk is small."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65_536, 1):
            with pytest.raises(OSError, match="No space"):
                while True:
                    file.write(bytes(size))
    return filler


@pytest.mark.parametrize("reserved", [True, False])
def test_on_a_full_disk_a_kill_takes_the_room_set_aside_or_waits_for_room(node: Node, *, reserved: bool) -> None:
    greedy = node.container()
    tenant = greedy.tenant(node.sim, "--mib", "2000")
    node.allow(greedy.quota(node.gpu, 4096, grace_seconds=GRACE))
    node.start()
    node.looks(3)
    wait_for((node.state / FOLDER / RESERVED).exists, 10)
    if not reserved:
        (node.state / FOLDER / RESERVED).unlink()
    filler = fill(node.state)
    node.sim.register(tenant.pid, node.gpu, 9000)
    if not reserved:
        wait_for(lambda: str(Reason.AUDIT_UNWRITABLE) in node.log(), 20)
        with pytest.raises(subprocess.TimeoutExpired):
            tenant.wait(GRACE + 20 * POLL)
        assert node.records("INTENT") == []
        filler.unlink()
    wait_for(lambda: not alive(tenant), 30)
    filler.unlink(missing_ok=True)
    wait_for(lambda: bool(node.records("OUTCOME")), 30)
    assert node.verified()
    assert node.stop() == 0


def test_on_a_read_only_disk_it_does_not_start_and_says_why(node: Node, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", node.state], check=True)
    with (tmp_path / "said").open("wb") as said:
        node.launch(stderr=said)
    assert node.enforcer is not None
    assert node.enforcer.wait(30) != 0
    text = (tmp_path / "said").read_text()
    assert "Read-only file system" in text
    assert str(node.state) in text
    assert "Traceback" not in text
