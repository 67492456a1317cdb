"""Test 24: corpses, headless, stopped, traced and hanging processes: the right one, one signal each, nobody instead."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from enforcer.attribution.procfs import PidHandle, namespace_pids
from enforcer.kill.process_kill import KillTimeouts
from enforcer.quota.types import OnExceed
from gpushare.reasons import Reason
from tests.integration.processes.containers import Container, Kubelet, alive, wait_for
from tests.safety.freezing import freeze, freezer, thaw
from tests.safety.killing import GPU, Bench
from tests.safety.tenants import forget, started, tenant
from tests.support import extent

pytestmark = pytest.mark.node
TERM, BOTH = ["SIGTERM"], ["SIGTERM", "SIGKILL"]
STATES = {
    "headless": ("Z", TERM),
    "lender": ("D", TERM),
    "quiet": ("S", TERM),
    "stopped": ("T", BOTH),
    "traced": ("t", BOTH),
}
"""What a tenant does, the state its first thread is in then, and what it takes to end it."""


@pytest.fixture(name="stack")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Case:
    """A container with one process that holds 9000 MiB, and one that holds 100 and could be taken for it."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        kubelet: Kubelet,
        mode: str,
        state: str,
        patience: KillTimeouts | None = None,
    ) -> None:
        self.container = stack.enter_context(kubelet.container())
        self.sibling = tenant(self.container, "quiet")
        self.process, self.pid = started(self.container, mode, state)
        handle = PidHandle.open(self.pid)
        assert handle is not None
        self.handle = stack.enter_context(handle)
        self.bench = Bench(folder, self._held, patience=patience)
        stack.callback(self.bench.close)
        self.quota = self.container.quota(GPU, 4096)

    def _held(self) -> list[tuple[int, int]]:
        """Memory is held until the last thread has gone."""
        return [] if self.handle.ended() else [(self.pid, 9000), (self.sibling.pid, 100)]


def patience(signals: list[str]) -> KillTimeouts:
    """Every wait ends with the process: one that dies may take its time on a busy machine."""
    return KillTimeouts(term=30.0 if signals == TERM else 0.2, kill=30.0)


@pytest.mark.parametrize("mode", STATES)
def test_what_is_hard_to_end_is_ended_by_one_signal_of_each_kind_and_nobody_else_is(mode: str, tmp_path: Path) -> None:
    (state, signals), kubelet = STATES[mode], Kubelet()
    count = extent.trials(2, 200)
    for number in range(count):
        with ExitStack() as stack:
            case = Case(stack, tmp_path / str(number), kubelet, mode, state, patience(signals))
            assert case.bench.kill(case.quota).reason is Reason.KILLED
            assert case.bench.signals() == [(case.pid, name) for name in signals]
            assert alive(case.sibling)
            (outcome,) = case.bench.records("OUTCOME")
            assert outcome["pod"]["uid"] == case.container.pod_uid
            assert [(row["pid"], row["result"]) for row in outcome["targets"]] == [(case.pid, "Killed")]
            assert case.bench.whole()
    extent.figure("24", f"{mode} ({state}): ended, by {' and '.join(signals)} once each", f"{count:,} in {count:,}")


def test_a_corpse_that_is_reported_to_hold_memory_is_let_be_and_so_is_everybody_else(
    stack: ExitStack, tmp_path: Path
) -> None:
    case = Case(stack, tmp_path, Kubelet(), "corpse", "Z")
    case.bench = Bench(tmp_path, lambda: [(case.pid, 9000), (case.sibling.pid, 100)])
    count = extent.trials(100, 1_000)
    for _ in range(count):
        assert not case.bench.kill(case.quota).acted
    assert case.bench.signals() == []
    assert (case.bench.records(), alive(case.sibling)) == ([], True)
    extent.figure(
        "24", "signals while an exited process is reported to use memory", f"{len(case.bench.signals())} in {count:,}"
    )


@pytest.fixture(name="cold")
def _cold() -> Iterator[Path]:
    with freezer() as folder:
        yield folder


def test_what_hangs_is_signalled_once_nobody_dies_in_its_place_and_its_end_is_on_record_at_the_next_look(
    stack: ExitStack, cold: Path, tmp_path: Path
) -> None:
    case = Case(stack, tmp_path, Kubelet(), "quiet", "S")
    freeze(cold, case.pid)
    count = extent.trials(100, 1_000)
    for _ in range(count):
        assert case.bench.kill(case.quota).reason is Reason.UNKILLABLE
        case.bench.executor.reap_pending()
    assert case.bench.signals() == [(case.pid, "SIGTERM"), (case.pid, "SIGKILL")]
    assert alive(case.sibling)
    wait_for(lambda: len(case.bench.records()) > 1, 30)
    assert [record["kind"] for record in case.bench.records()] == ["INTENT", "UNKILLABLE"]
    thaw(cold)
    assert case.handle.ended(30)
    case.bench.executor.reap_pending()
    wait_for(lambda: len(case.bench.records("OUTCOME")) == 1, 30)
    assert case.bench.records("OUTCOME")[0]["result"] == "Killed"
    assert case.bench.whole()
    more = len(case.bench.signals()) - len(BOTH)
    extent.figure(
        "24", "hanging (frozen): victims in its place, or signals after the first two", f"{more} in {count:,}"
    )
    extent.figure("24", "samples from its exit to its OUTCOME", str(len(case.bench.records("OUTCOME"))))


def numbered(container: Container, number: int) -> int:
    """The process of that pid in the container's own namespace; in ours their order is another once pids begin anew."""
    [found] = [pid for pid in container.pids() if namespace_pids(pid)[-1:] == (number,)]
    return found


def test_a_first_process_that_hangs_does_not_save_who_holds_the_memory(
    stack: ExitStack, cold: Path, tmp_path: Path
) -> None:
    container: Container = stack.enter_context(Kubelet().container())
    outside = tenant(container, "storm", own=True)
    wait_for(lambda: len(container.pids()) > 1, 30)
    first, holder = numbered(container, 1), numbered(container, 2)
    patient = KillTimeouts(term=30.0, kill=1.0)
    bench = Bench(tmp_path, lambda: [(pid, 9000) for pid in container.pids() if pid == holder], patience=patient)
    stack.callback(bench.close)
    freeze(cold, first)
    handle = PidHandle.open(first)
    assert handle is not None
    with handle:
        result = bench.kill(container.quota(GPU, 4096, on_exceed=OnExceed.KILL_CONTAINER))
        assert result.reason is Reason.UNKILLABLE
        assert [(first, signal.SIGKILL.name), (holder, signal.SIGTERM.name)] == bench.signals()
        thaw(cold)
        assert handle.ended(30)
    bench.executor.reap_pending()
    wait_for(lambda: len(bench.records("OUTCOME")) == 1, 30)
    forget(container, outside)
