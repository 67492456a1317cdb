"""Test 16: a container that forks faster than anybody counts is empty at once, and nobody else notices."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enforcer.attribution.procfs import PidHandle, leads_namespace
from enforcer.audit.kill_records import ESCALATED, NO_FIRST
from enforcer.quota.types import OnExceed
from gpushare.reasons import Reason
from tests.integration.processes.containers import Container, Kubelet, wait_for
from tests.safety.killing import GPU, Bench
from tests.safety.tenants import forget, state_of, tenant
from tests.support import extent

pytestmark = pytest.mark.node
CROWD = 20
"""So many processes are there when the container is ended, and 200 more each second."""
SECONDS = 2.0


class Neighbours:
    """Who must not notice: another pod, and a container of the same pod in its own namespace, as its sandbox is."""

    def __init__(self, stack: ExitStack, kubelet: Kubelet, victim: Container) -> None:
        sandbox = Container(victim.cgroup.parent / ("e" * 64), victim.pod_uid, "e" * 64, [])
        sandbox.cgroup.mkdir()
        stack.callback(sandbox.end)
        other = stack.enter_context(kubelet.container())
        self._handles: list[PidHandle] = []
        for container in (sandbox, other):
            tenant(container, "quiet", own=True)
            tenant(container, "quiet")
            found = [PidHandle.open(pid) for pid in container.pids()]
            self._handles += [stack.enter_context(handle) for handle in found if handle is not None]
        assert len(self._handles) == 4

    def untouched(self) -> bool:
        return not any(handle.ended() for handle in self._handles)


@pytest.fixture(name="stack")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def first_of(container: Container) -> int:
    """The process that is 1 in its own namespace; the lowest pid is another's once pids have begun anew."""
    [found] = [pid for pid in container.pids() if leads_namespace(pid)]
    return found


def test_a_container_that_forks_200_times_a_second_is_empty_two_seconds_after_the_decision(
    stack: ExitStack, tmp_path: Path
) -> None:
    kubelet, took = Kubelet(), list[float]()
    victim = stack.enter_context(kubelet.container())
    neighbours = Neighbours(stack, kubelet, victim)
    bench = Bench(tmp_path, lambda: [(pid, 3000) for pid in victim.pids()[1:4]])
    stack.callback(bench.close)
    quota = victim.quota(GPU, 2000, on_exceed=OnExceed.KILL_CONTAINER)
    count = extent.trials(10, 1_000)
    for number in range(count):
        outside = tenant(victim, ("storm", "hearing")[number % 2], own=True)
        wait_for(lambda: len(victim.pids()) > CROWD, 30)
        first = first_of(victim)
        verdict, begun = bench.decision(quota), time.monotonic()
        result = bench.executor.execute(verdict)
        wait_for(lambda: not victim.pids(), 30)
        took.append(time.monotonic() - begun)
        assert result.reason is Reason.KILLED
        assert bench.last("INTENT")["first"] == first
        assert outside.wait(30) == 0
        forget(victim, outside)
    assert neighbours.untouched()
    assert bench.whole()
    within = sum(each <= SECONDS for each in took)
    assert within == count or not extent.full()
    extent.figure("16", "forking containers empty within 2 s of the decision", f"{within:,} in {count:,}")
    extent.figure("16", "the slowest of them", f"{max(took):.2f} s")


def test_a_container_without_a_namespace_of_its_own_loses_all_its_processes_and_it_is_reported(
    stack: ExitStack, tmp_path: Path
) -> None:
    victim = stack.enter_context(Kubelet().container())
    holder, other = tenant(victim, "quiet"), tenant(victim, "quiet")
    bench = Bench(tmp_path, lambda: [(holder.pid, 3000)] if holder.poll() is None else [])
    stack.callback(bench.close)
    assert bench.kill(victim.quota(GPU, 2000, on_exceed=OnExceed.KILL_CONTAINER)).reason is Reason.KILLED
    assert not victim.pids()
    assert (holder.wait(30), other.wait(30)) == (-signal.SIGTERM, -signal.SIGTERM)
    assert bench.records("INTENT")[0]["note"] == NO_FIRST


@pytest.mark.parametrize("own", [True, False], ids=["its own pid namespace", "that of another container"])
def test_a_container_that_starts_deaf_processes_again_is_empty_after_one_round(
    stack: ExitStack, tmp_path: Path, *, own: bool
) -> None:
    kubelet = Kubelet()
    victim = stack.enter_context(kubelet.container())
    neighbours = Neighbours(stack, kubelet, victim)

    def living() -> list[int]:
        return sorted(pid for pid in victim.pids() if state_of(pid) not in {"", "Z", "X"})

    def settled() -> bool:
        return len(living()) in {0, 3} or (chief != 0 and chief not in living())  # nobody replaces them any more

    def held() -> list[tuple[int, int]]:
        wait_for(settled, 30)  # however slow the machine, it looks after they were replaced
        return [(pid, 3000) for pid in living() if pid != chief]

    chief, outside = 0, tenant(victim, "respawn", own=own)
    wait_for(lambda: len(living()) == 3, 30)
    chief = first_of(victim) if own else outside.pid
    bench = Bench(tmp_path, held)
    stack.callback(bench.close)
    result = bench.kill(victim.quota(GPU, 2000))
    wait_for(lambda: not living(), 30)
    assert result.reason is Reason.KILLED
    signals = bench.signals()
    assert [number for _, number in signals[:4]] == ["SIGTERM", "SIGTERM", "SIGKILL", "SIGKILL"]
    assert signals.count((chief, "SIGKILL")) == 1
    assert own == (signals[-1] == (chief, "SIGKILL") and len(signals) == 5)
    last = bench.last("INTENT")
    assert last["escalated"] == ESCALATED
    assert last.get("first") == (chief if own else None)
    assert outside.wait(30) == (0 if own else -signal.SIGKILL)
    forget(victim, outside)
    assert neighbours.untouched()
    assert bench.whole()
