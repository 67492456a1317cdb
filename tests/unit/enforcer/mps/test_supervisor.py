"""Looking after daemons: who is asked, started and ended, and that none keeps another waiting."""

import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.dra.mps_readiness import wait_until_ready
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.desired_daemons import DaemonPlan
from enforcer.mps.manager import AT_ONCE, MpsManager, side_by_side
from enforcer.mps.supervisor import MpsSupervisor
from gpushare.errors import MpsError, NvmlError, PrepareError
from gpushare.reasons import Reason
from tests.support.wiring import supervisor as keeper_that
from tests.unit.enforcer.made import GPU, OTHER_GPU

BLOCKED = MpsError("blocked", Reason.MPS_CONTROL_BLOCKED)
SILENT = MpsError("silent")


class Roster:
    """Says what the test wants done."""

    def __init__(self, *served: str, leaving: Iterable[str] = (), before: Iterable[str] = ()) -> None:
        self.before, self.problem = frozenset(before), None
        self.duty = DaemonPlan(frozenset(served), frozenset(leaving))
        self.turns, self.used_by, self.leaves, self.unknown = 0, list[str](), True, False
        self.forgotten = list[str]()

    def plan(self) -> DaemonPlan:
        self.turns += 1
        return self.duty

    def used(self, gpu: str) -> None:
        self.used_by.append(gpu)

    @contextmanager
    def leaving(self, _: str) -> Iterator[bool]:
        yield self.leaves

    def changed(self, _: str) -> bool:
        return False

    def forget(self, gpu: str) -> None:
        self.forgotten.append(gpu)

    def gone(self, _: str) -> bool:
        return self.unknown


class Manager:
    """Daemons that are there or not, and what goes wrong with them."""

    def __init__(self, *there: str) -> None:
        self.there, self.lacking = set(there), set[str]()
        self.failure: MpsError | None = None
        self.unstoppable: Exception | None = None
        self.looks, self.asked, self.started, self.stopped, self.forgotten = 0, 0, list[str](), list[str](), list[str]()

    def health(self, gpus: Collection[str]) -> dict[str, Any]:
        self.looks += 1
        wrong = self.failure if self.failure is BLOCKED else SILENT
        return {gpu: "fine" if gpu in self.there and wrong is SILENT else wrong for gpu in gpus if self.knows(gpu)}

    def knows(self, gpu: str) -> bool:
        return gpu not in self.lacking

    def start(self, gpus: Collection[str]) -> dict[str, Any]:
        self.started += gpus
        if self.failure is not None:
            return dict.fromkeys(gpus, self.failure)
        self.there |= set(gpus)
        return {}

    def answers(self, gpu: str) -> bool:
        self.asked += 1
        if self.failure is BLOCKED:
            raise BLOCKED
        return gpu in self.there

    def stop(self, gpus: Collection[str]) -> None:
        self.stopped += gpus
        if self.unstoppable is not None:
            raise self.unstoppable

    def remove(self, gpu: str) -> None:
        self.forgotten.append(gpu)


def keeper_of(manager: Manager, roster: Roster, fresh: float = 0) -> MpsSupervisor:
    return MpsSupervisor(manager, roster, fresh)  # type: ignore[arg-type]


def test_daemons_that_do_not_answer_are_started_and_blocked_ones_are_not() -> None:
    manager = Manager(GPU)
    keeper = keeper_of(manager, Roster(GPU, OTHER_GPU))
    keeper.run_once()
    assert (manager.started, list(keeper.problems())) == ([OTHER_GPU], [])
    manager.failure = BLOCKED
    keeper.run_once()
    assert manager.started == [OTHER_GPU]
    assert sorted(keeper.problems()) == [f"MPS on {GPU}: blocked", f"MPS on {OTHER_GPU}: blocked"]
    manager.failure = MpsError("no such program")
    manager.there.clear()
    keeper.run_once()
    assert f"MPS on {GPU}: no such program" in keeper.problems()


def test_a_daemon_serves_where_it_answers_or_was_left_running_before_us() -> None:
    manager = Manager(GPU, OTHER_GPU)
    keeper = keeper_of(manager, Roster(GPU, OTHER_GPU, before=[OTHER_GPU]))
    assert [keeper.is_ready(gpu) for gpu in (GPU, OTHER_GPU)] == [False, True]
    keeper.run_once()
    assert [keeper.is_ready(gpu) for gpu in (GPU, OTHER_GPU)] == [True, True]
    manager.failure = BLOCKED
    keeper.run_once()
    assert [keeper.is_ready(gpu) for gpu in (GPU, OTHER_GPU)] == [False, False]
    manager.failure = None
    manager.there.clear()
    keeper.run_once()
    assert [keeper.is_ready(gpu) for gpu in (GPU, OTHER_GPU)] == [True, True], "they were started again"


def test_only_what_fails_turn_after_turn_is_lowered_against_a_gpu() -> None:
    manager = Manager()
    manager.failure = SILENT
    keeper = keeper_of(manager, Roster(GPU))
    keeper.run_once()
    assert keeper.failures == {}
    for _ in range(3):
        keeper.not_ready_reason(GPU)
    assert keeper.failures == {}
    keeper.run_once()
    assert keeper.failures == {GPU: SILENT}
    manager.failure = None
    keeper.run_once()
    assert keeper.failures == {}


def test_a_missing_daemon_is_started_at_once_for_who_waits() -> None:
    manager, roster = Manager(), Roster(GPU)
    keeper = keeper_of(manager, roster)
    assert keeper.not_ready_reason(GPU) is None
    assert (keeper.not_ready_reason(GPU), manager.looks, roster.turns) == (None, 1, 1)
    manager.there.clear()
    manager.failure = MpsError("no such program")
    assert keeper.not_ready_reason(GPU) == "no such program"
    assert (
        keeper.not_ready_reason("GPU-other")
        == "the enforcer runs no MPS daemon for GPU-other; run gpu-share check for the cause"
    )
    assert roster.used_by == [GPU, GPU, GPU, "GPU-other"]


def test_what_keeps_all_daemons_from_being_made_is_the_answer() -> None:
    roster = Roster()
    roster.problem = "no driver"  # type: ignore[assignment]
    keeper = keeper_of(Manager(), roster)
    assert keeper.not_ready_reason(GPU) == "no driver"
    assert list(keeper.problems()) == ["the enforcer cannot supervise the MPS daemons: no driver"]


def test_a_gpu_without_a_daemon_never_counts_as_served() -> None:
    manager = Manager()
    manager.lacking.add(GPU)
    keeper = keeper_of(manager, Roster(GPU))
    assert (
        keeper.not_ready_reason(GPU) == f"the enforcer runs no MPS daemon for {GPU}; run gpu-share check for the cause"
    )
    keeper.run_once()
    assert not keeper.is_ready(GPU)


def test_those_who_wait_together_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, gate, came = Manager(), threading.Event(), threading.Semaphore(0)

    def clock() -> float:
        came.release()
        return time.monotonic()

    monkeypatch.setattr("enforcer.mps.supervisor.time", SimpleNamespace(monotonic=clock))
    manager.failure = MpsError("no such program")
    health = manager.health

    def slow(gpus: Collection[str]) -> dict[str, Any]:
        assert gate.wait(60)
        return health(gpus)

    manager.health = slow  # type: ignore[method-assign]
    keeper = keeper_of(manager, Roster(GPU))
    threads = [threading.Thread(target=keeper.not_ready_reason, args=(GPU,)) for _ in range(10)]
    for each in threads:
        each.start()
    assert all(came.acquire(timeout=60) for _ in range(11)), "all have come, and the first of them asks"
    gate.set()
    for each in threads:
        each.join(60)
    assert manager.looks <= 2


def test_pods_that_start_together_ask_a_daemon_that_serves_once() -> None:
    manager = Manager()
    keeper = keeper_of(manager, Roster(GPU), 60)
    threads = [threading.Thread(target=keeper.not_ready_reason, args=(GPU,)) for _ in range(30)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(5)
    assert (manager.looks, manager.asked) == (1, 0)
    keeper.run_once()
    assert keeper.not_ready_reason(GPU) is None
    assert manager.asked == 0


def test_a_blocked_daemon_is_reported() -> None:
    manager = Manager()
    keeper = keeper_of(manager, Roster(GPU))
    assert keeper.not_ready_reason(GPU) is None
    manager.failure = BLOCKED
    assert keeper.not_ready_reason(GPU) == "blocked"


class Hanging(Manager):
    """All daemons but one keep whoever asks them until the test lets go."""

    def __init__(self, *fine: str) -> None:
        super().__init__(*fine)
        self.free, self.held = threading.Event(), threading.Semaphore(0)

    def health(self, gpus: Collection[str]) -> dict[str, Any]:
        if not self.there & set(gpus):
            self.held.release()
            assert self.free.wait(30)
        return super().health(gpus)


def test_blocked_gpus_are_asked_side_by_side_and_keep_no_pod_of_another_waiting() -> None:
    hung = [f"GPU-{number}" for number in range(5)]
    manager = Hanging(GPU)
    keeper = keeper_of(manager, Roster(GPU, *hung))
    turn = threading.Thread(target=keeper.run_once)
    turn.start()
    assert all(manager.held.acquire(timeout=10) for _ in hung), "all of them are asked at the same time"
    assert keeper.not_ready_reason(GPU) is None, "while all others hang"
    assert turn.is_alive()
    manager.free.set()
    turn.join(10)
    assert not turn.is_alive()


def test_a_wait_ends_in_its_time_though_nobody_answers() -> None:
    free = threading.Event()

    def hangs(_: str) -> str | None:
        free.wait(30)
        return None

    began = time.monotonic()
    with pytest.raises(
        PrepareError, match=f"the MPS daemon of {GPU} is not ready, or has not stopped yet; the kubelet retries"
    ):
        wait_until_ready(keeper_that(hangs), [GPU], lambda: time.monotonic() - began < 0.5)
    assert time.monotonic() - began < 10
    free.set()
    wait_until_ready(keeper_that(hangs), [GPU, OTHER_GPU], lambda: True)


def test_a_bug_in_asking_is_not_taken_for_an_answer() -> None:
    def breaks(_: str) -> str | None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        wait_until_ready(keeper_that(breaks), [GPU], lambda: True)


def test_a_daemon_whose_time_is_over_is_ended_and_forgotten() -> None:
    manager, roster = Manager(GPU, OTHER_GPU), Roster(GPU, leaving=[OTHER_GPU], before=[OTHER_GPU])
    keeper = keeper_of(manager, roster)
    keeper.run_once()
    assert (manager.stopped, manager.forgotten, roster.forgotten) == ([OTHER_GPU], [OTHER_GPU], [OTHER_GPU])
    assert [keeper.is_ready(gpu) for gpu in (GPU, OTHER_GPU)] == [True, False]


def test_one_that_was_claimed_in_the_last_moment_stays() -> None:
    manager, roster = Manager(GPU), Roster(leaving=[GPU])
    roster.leaves = False
    keeper_of(manager, roster).run_once()
    assert manager.stopped == []


def test_one_that_cannot_be_ended_is_kept_and_reported() -> None:
    manager = Manager(GPU)
    manager.unstoppable = NvmlError("the mode cannot be set")
    roster = Roster(leaving=[GPU])
    keeper = keeper_of(manager, roster)
    keeper.run_once()
    assert (manager.forgotten, list(keeper.problems())) == ([], [f"MPS on {GPU}: the mode cannot be set"])
    roster.unknown = True
    keeper.run_once()
    assert (manager.forgotten, list(keeper.problems())) == ([GPU], []), "the card is gone: there is no mode to set"


def test_doing_it_side_by_side_is_bounded_and_no_bug_is_lost() -> None:
    gate, lock, peak, now = threading.Event(), threading.Lock(), [0], [0]

    def work(number: int) -> int:
        with lock:
            now[0] += 1
            peak[0] = max(peak[0], now[0])
            if now[0] == AT_ONCE:
                gate.set()
        assert gate.wait(10)
        with lock:
            now[0] -= 1
        return number * 2

    assert side_by_side(work, range(40)) == {number: number * 2 for number in range(40)}
    assert peak == [AT_ONCE]
    assert side_by_side(work, []) == {}
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda number: 1 // number, [1, 0, 2])


def test_daemons_come_and_go(tmp_path: Path) -> None:
    class Daemon:
        def __init__(self, gpu: str) -> None:
            self.gpu, self.noted = gpu, False

        def terminate(self, pid: int, ended: object = None) -> bool | None:
            return pid == 1 or None

    manager, told, later = MpsManager(), list[str](), list[str]()
    manager.subscribe(told.append)
    first: Any = Daemon(GPU)
    manager.add(first)
    manager.add(Daemon(GPU))  # type: ignore[arg-type]
    assert manager.daemons == {GPU: first}
    assert manager.terminate(1) is None, "one that never served has no clients"
    first.noted = True
    manager.remove(GPU)
    manager.add(first)
    assert manager.terminate(1, GPU) is True
    manager.remove(GPU)
    assert (manager.daemons, manager.terminate(1)) == ({}, None)
    manager.subscribe(later.append)
    assert (told, later) == ([GPU], [GPU]), "each once, those that were there before included"


def test_a_blocked_daemon_is_no_answer_to_who_wants_a_client_ended() -> None:
    class Daemon:
        gpu, noted = GPU, True

        def terminate(self, _: int, ended: object = None) -> bool:
            raise BLOCKED

    manager = MpsManager()
    manager.add(Daemon())  # type: ignore[arg-type]
    with pytest.raises(MpsError, match="blocked"):
        manager.terminate(1, GPU)


def test_a_daemon_that_runs_on_while_it_cannot_be_looked_after_is_asked_to_let_go_of_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Daemon:
        gpu, noted = GPU, True

        def terminate(self, _: int, ended: object = None) -> bool:
            return True

    def refuse(_: object) -> None:
        raise NvmlError("the compute mode cannot be read")

    monkeypatch.setattr(MpsDaemon, "start", refuse)
    daemon: Any = Daemon()
    manager = MpsManager()
    manager.add(daemon)
    assert list(manager.start()) == [GPU]
    assert manager.terminate(1, GPU) is True, "or its client would be killed while it is one"
    daemon.noted = False
    assert list(manager.start()) == [GPU]
    assert manager.terminate(1, GPU) is None, "it is not there"
