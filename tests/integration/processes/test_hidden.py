"""Memory that nobody is counted for, with the whole enforcer and real processes: who is told, who ends, who does not.

The GPU is shared by turns here, so that no limit bounds what a neighbour's processes hold beyond their rows.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.procfs import is_alive
from tests.fakes.gpu import exports
from tests.integration.processes.containers import Container, alive, wait_for
from tests.integration.processes.enforcing import POLL, Node

pytestmark = pytest.mark.node

HIDDEN, QUOTA, GRACE, SLACK = 12_288, 8192, 1.0, 1.0
NVML = (
    "import ctypes, sys; ctypes.CDLL('libnvidia-ml.so.1').nvmlInitWithFlags(0); "
    "print('ready', flush=True); sys.stdin.read()"
)
"""A program that reads NVML alone, as nvitop does."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        stack.callback(made.end)
        yield made


def started(node: Node, consequence: str, *quotas: int) -> list[Container]:
    """An enforcer that has seen a calm GPU with so many containers."""
    containers = [node.container() for _ in quotas]
    node.allow(*(each.quota(node.gpu, mib, grace_seconds=GRACE) for each, mib in zip(containers, quotas, strict=True)))
    node.start("--unaccounted", consequence, "--control-device", str(node.sim.folder / exports.FOLDER))
    node.looks(3)
    return containers


def gpu(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.status()["gpus"][0]
    return found


def seen(node: Node, what: Callable[[dict[str, Any]], bool], seconds: float = 10) -> float:
    return wait_for(lambda: what(gpu(node)), seconds)


def hide(container: Container, node: Node, *options: str) -> subprocess.Popen[str]:
    return container.tenant(node.sim, "--mib", "0", "--hidden", str(HIDDEN), *options)


def test_with_consent_the_holder_of_hidden_memory_ends_and_its_neighbour_lives(node: Node) -> None:
    greedy, modest = started(node, "kill", QUOTA, 4096)
    neighbour = modest.tenant(node.sim, "--mib", "0")
    bystander = greedy.spawn("sleep", "60")
    holder = hide(greedy, node)
    shown = seen(node, lambda each: each["unaccountedMib"] >= HIDDEN - 64)
    ended = wait_for(lambda: not alive(holder), 10)
    print(f"seen after {shown:.2f} s, the holder ended {ended:.2f} s later; grace {GRACE} s, poll {POLL} s")
    assert shown <= 2 * 1.5 * POLL + SLACK
    assert ended <= GRACE + 1.0 + SLACK
    assert alive(neighbour)
    seen(node, lambda each: each["unaccountedMib"] < 64)
    intent = node.records("INTENT")[0]
    assert (intent["cause"], intent["pod"]["uid"], intent["targets"][0]["pid"]) == (
        "UnaccountedMemory",
        greedy.pod_uid,
        holder.pid,
    )
    assert intent["unaccountedMiB"] >= HIDDEN - 1024
    assert node.verified()
    assert [each["kind"] for each in node.records() if each["pod"]["uid"] == modest.pod_uid] == []
    bystander.kill()


def test_all_processes_with_descriptors_end_also_those_that_ignore_a_request(node: Node) -> None:
    (greedy,) = started(node, "kill", QUOTA)
    greedy.tenant(node.sim, "--mib", "0", "--hidden", "4000", "--fork", "2", "--ignore-term")
    seen(node, lambda each: [every["processes"] for every in each["descriptorHolders"]] == [3])
    pids = gpu(node)["descriptorHolders"][0]["pids"]
    wait_for(lambda: not any(is_alive(pid) for pid in pids), 20)
    seen(node, lambda each: each["unaccountedMib"] < 64)
    assert node.verified()


def test_without_consent_it_is_named_and_lives(node: Node) -> None:
    (greedy,) = started(node, "report", QUOTA)
    holder = hide(greedy, node)
    seen(node, lambda each: bool(each["hiddenIn"]))
    assert gpu(node)["descriptorHolders"][0]["pids"] == [holder.pid]
    wait_for(lambda: "UnaccountedMemory" in node.log(), 5)
    node.looks(int(2 * GRACE / POLL))
    assert (alive(holder), node.records()) == (True, [])


def test_of_two_that_may_hold_it_nobody_ends_and_both_are_named(node: Node) -> None:
    one, other = started(node, "kill", 1024, 1024)
    holders = [each.tenant(node.sim, "--mib", "0", "--hidden", "5000") for each in (one, other)]
    seen(node, lambda each: len(each["descriptorHolders"]) == 2)
    node.looks(int(2 * GRACE / POLL))
    assert ([alive(each) for each in holders], node.records()) == ([True, True], [])


def test_a_neighbour_whose_memory_no_limit_bounds_may_have_it_so_nobody_ends(node: Node) -> None:
    """Its managed memory is in no row, and the other's descriptor is of memory in its own row."""
    loader, neighbour = started(node, "kill", 1024, 16_000)
    holder = loader.tenant(node.sim, "--mib", "0", "--hidden", "64")
    managed = neighbour.tenant(node.sim, "--mib", "500", "--managed", "9000")
    seen(node, lambda each: each["unaccountedMib"] > 8000 and bool(each["descriptorHolders"]))
    node.looks(int(2 * GRACE / POLL))
    assert ([alive(holder), alive(managed)], node.records()) == ([True, True], [])


def test_a_program_with_a_use_for_descriptors_lives_beside_one_that_hides_its_own_from_looks(node: Node) -> None:
    exporter, hider = started(node, "kill", 1024, 1024)
    listed = exporter.tenant(node.sim, "--mib", "500", "--hidden", "64")
    hidden = hide(hider, node, "--unread")
    seen(node, lambda each: each["unaccountedMib"] >= HIDDEN and bool(each["descriptorHolders"]))
    node.looks(int(2 * GRACE / POLL))
    assert [each["pids"] for each in gpu(node)["descriptorHolders"]] == [[listed.pid]], "no look finds the other"
    assert gpu(node)["withheldMib"] >= HIDDEN - 1024
    assert ([alive(listed), alive(hidden)], node.records()) == ([True, True], [])


def test_one_that_was_alone_ends_for_managed_memory_beyond_its_quota_only(node: Node) -> None:
    (container,) = started(node, "kill", QUOTA)
    within = container.tenant(node.sim, "--mib", "500", "--managed", "7000")
    seen(node, lambda each: bool(each["hiddenIn"]))
    node.looks(int(2 * GRACE / POLL))
    assert (alive(within), gpu(node)["withheldMib"]) == (True, 0), "its share has that memory"
    beyond = container.tenant(node.sim, "--mib", "500", "--managed", "4000")
    wait_for(lambda: not alive(within) and not alive(beyond), 10)
    assert node.records("INTENT")[0]["cause"] == "UnaccountedMemory"


def test_who_only_reads_nvml_or_holds_a_descriptor_for_a_second_is_not_named(node: Node) -> None:
    (container,) = started(node, "kill", QUOTA)
    reader = container.spawn(sys.executable, "-c", NVML, env=node.sim.environment(node.library))
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    loader = container.tenant(node.sim, "--mib", "0", "--hidden", "400", "--seconds", "1")
    late = container.tenant(node.sim, "--mib", "4000", "--late", "0.1")
    worst = 0
    while alive(loader):
        worst = max(worst, gpu(node)["unaccountedMib"] or 0)
        node.looks(1)
    assert worst <= 512
    assert (gpu(node)["descriptorHolders"], node.records(), alive(late)) == ([], [], True)
    reader.kill()
