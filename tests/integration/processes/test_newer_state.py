"""An enforcer that finds files of a newer release says so, leaves them alone, and kills nobody because of them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.unaccounted_monitor import NAME as KNOWN_MEMORY
from enforcer.audit.log import FOLDER
from enforcer.audit.segments import segment_name
from enforcer.detection.state_file import NAME as BUDGETS
from enforcer.quota.checkpoint import NAME as CHECKPOINT
from gpushare import formats
from tests.golden.state_files import ALL
from tests.golden.test_state_files import of_tomorrow
from tests.integration.processes.containers import alive, wait_for
from tests.integration.processes.enforcing import Node

pytestmark = pytest.mark.node
GRACE = 0.4
LOOKS = 8
BY_NAME = {golden.name: golden for golden in ALL}


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        stack.callback(made.end)
        yield made


def put(file: Path, content: bytes) -> Path:
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_bytes(content)
    return file


def newer(file: Path, version: int) -> bytes:
    """What is there already, under the next version."""
    content: dict[str, Any] = json.loads(file.read_bytes())
    file.write_bytes(json.dumps({**content, "version": version + 1}).encode())
    return file.read_bytes()


def test_quotas_of_a_newer_release_stay_and_nobody_is_killed_by_them(node: Node) -> None:
    greedy = node.container()
    tenant = greedy.tenant(node.sim, "--mib", "9000")
    node.allow(greedy.quota(node.gpu, 1000, grace_seconds=GRACE))
    before = newer(node.state / CHECKPOINT, formats.CHECKPOINT.version)
    known = put(node.state / KNOWN_MEMORY, of_tomorrow(BY_NAME["known-memory"]))
    node.start()
    node.looks(LOOKS)
    assert alive(tenant)
    assert [each for each in node.status()["problems"] if "checkpoint.json has version 2" in each]
    assert node.stop() == 0
    assert (node.state / CHECKPOINT).read_bytes() == before
    assert known.read_bytes() == of_tomorrow(BY_NAME["known-memory"])


def test_budgets_of_a_newer_release_stay_and_quotas_are_enforced_with_full_ones(node: Node) -> None:
    greedy = node.container()
    tenant = greedy.tenant(node.sim, "--mib", "9000")
    node.allow(greedy.quota(node.gpu, 1000, grace_seconds=GRACE))
    budgets = put(node.state / BUDGETS, of_tomorrow(BY_NAME["budgets"]))
    node.start()
    wait_for(lambda: not alive(tenant), 30)
    assert node.verified()
    assert node.stop() == 0
    assert budgets.read_bytes() == of_tomorrow(BY_NAME["budgets"])
    assert "detector.json has version 6" in node.log()


def test_behind_an_audit_record_of_a_newer_release_nothing_is_written_and_nobody_is_killed(node: Node) -> None:
    greedy = node.container()
    tenant = greedy.tenant(node.sim, "--mib", "9000")
    node.allow(greedy.quota(node.gpu, 1000, grace_seconds=GRACE))
    segment = put(node.state / FOLDER / segment_name(1), of_tomorrow(BY_NAME["audit-record"]))
    (node.state / FOLDER).chmod(0o700)
    segment.chmod(0o600)
    node.start()
    node.looks(LOOKS)
    assert alive(tenant)
    assert [each for each in node.status()["problems"] if "the audit record has version 2" in each]
    assert node.stop() == 0
    assert segment.read_bytes() == of_tomorrow(BY_NAME["audit-record"])
    assert sorted(each.name for each in segment.parent.glob("kills-*")) == [segment.name]
