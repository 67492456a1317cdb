"""Test 21 with the whole enforcer: real processes in real cgroups, and a driver that hangs, crashes or blocks."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enforcer.attribution.procfs import is_alive
from enforcer.detection.nvml_outage import REPORT_AFTER
from gpushare.reasons import Reason
from tests.fakes.gpu.state import Fault
from tests.integration.processes.containers import alive, wait_for
from tests.integration.processes.enforcing import POLL, Node
from tests.safety.freezing import freeze, freezer, thaw
from tests.support import extent

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]
GRACE, SLACK = 1.0, 8.0
LOST = extent.trials(15, 40)
LIST = "nvmlDeviceGetMPSComputeRunningProcesses_v3"


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        made = Node(tmp_path, stack)
        stack.callback(made.end)
        yield made


def child_of(node: Node) -> int:
    """The process that asks NVML for the enforcer; it is waited for."""
    assert node.enforcer is not None
    tasks = Path(f"/proc/{node.enforcer.pid}/task")
    found: list[int] = []

    def there() -> bool:
        found[:] = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        return len(found) == 1

    wait_for(there, 30)
    return found[0]


def blind(node: Node) -> str | None:
    reason: str | None = node.status()["gpus"][0]["blindReason"]
    return reason


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(Fault(call=LIST, hold=1), Reason.NVML_HUNG), (Fault(call=LIST, signal=11), Reason.NVML_CRASHED)],
    ids=["hangs", "crashes"],
)
def test_an_enforcer_whose_driver_fails_goes_on_looking_kills_nobody_and_then_does(
    node: Node, fault: Fault, reason: Reason
) -> None:
    greedy = node.container()
    tenant = greedy.tenant(node.sim, "--mib", "2000")
    node.allow(greedy.quota(node.gpu, 4096))
    node.start()
    node.looks(3)
    node.sim.fail(fault)
    wait_for(lambda: blind(node) == reason, 60)
    node.sim.register(tenant.pid, node.gpu, 9000)
    lasts = REPORT_AFTER + 1 if reason is Reason.NVML_HUNG else 2.0
    wait_for(lambda: node.status()["gpus"][0]["blindFor"] >= lasts, 60)
    node.looks(5)
    [container] = node.status()["containers"]
    assert (container["state"], str(reason) in container["sentence"], alive(tenant)) == ("Unknown", True, True)
    wait_for(lambda: lasts < REPORT_AFTER or "enforces no quota on it" in node.log(), 30)
    intents = len(node.records("INTENT"))
    assert intents == 0
    node.sim.fail()
    wait_for(lambda: blind(node) is None, 60)
    wait_for(lambda: bool(node.records("OUTCOME")), 60)
    assert (node.records("OUTCOME")[0]["result"], alive(tenant)) == ("Killed", False)
    assert node.stop() == 0
    extent.figure(
        "21", f"whole enforcer, {reason}: INTENT records while NVML is unavailable", f"{intents} in {lasts:.0f} s"
    )


def test_a_driver_that_loses_its_calls_is_read_within_two_polls_once_it_answers_others(node: Node) -> None:
    greedy = node.container()
    tenant = greedy.tenant(node.sim, "--mib", "2000")
    node.allow(greedy.quota(node.gpu, 4096, grace_seconds=GRACE))
    node.start()
    node.looks(3)
    node.sim.fail(Fault(call="*", delay_ms=600_000))
    wait_for(lambda: blind(node) == Reason.NVML_HUNG, 60)
    node.sim.register(tenant.pid, node.gpu, 9000)
    wait_for(lambda: (node.status()["gpus"][0]["blindFor"] or 0) >= LOST, LOST + 30)
    node.sim.fail()
    seen = wait_for(lambda: blind(node) is None, 60)
    ended = seen + wait_for(lambda: not alive(tenant), 60)
    assert seen <= 2 * 1.5 * POLL + SLACK
    assert ended <= 2 * 1.5 * POLL + GRACE + SLACK
    extent.figure("21", f"NVML that hung for {LOST} s and lost its calls: until it is read again", f"{seen:.1f} s")


def test_the_process_that_asks_nvml_does_not_outlive_an_enforcer_that_is_killed(node: Node) -> None:
    node.start()
    child = child_of(node)
    node.sim.fail(Fault(call=LIST, hold=1))
    wait_for(lambda: blind(node) == Reason.NVML_HUNG, 60)
    node.end()
    # A corpse is enough: whoever runs these tests may have become the reaper of orphans and not care.
    wait_for(lambda: not is_alive(child), 30)


@pytest.fixture(name="cold")
def _cold() -> Iterator[Path]:
    with freezer() as folder:
        yield folder


def test_what_the_kernel_holds_is_left_named_and_replaced(node: Node, cold: Path) -> None:
    node.start()
    child = child_of(node)
    freeze(cold, child)
    wait_for(lambda: blind(node) == Reason.NVML_HUNG, 60)
    wait_for(
        lambda: any(str(child) in each and "still run after SIGKILL" in each for each in node.status()["problems"]), 60
    )
    wait_for(lambda: blind(node) is None, 60)
    assert Path(f"/proc/{child}").exists()
    thaw(cold)
    wait_for(lambda: not any("still run after SIGKILL" in each for each in node.status()["problems"]), 60)
    assert not Path(f"/proc/{child}").exists()
    assert node.stop() == 0
