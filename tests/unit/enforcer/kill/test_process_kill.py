"""The steps by which one process is ended, each of them alone."""

import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from enforcer.attribution.procfs import PidHandle
from enforcer.kill import process_kill as steps_module
from enforcer.kill.pidfd_target import PinnedProcess
from enforcer.kill.process_kill import REFUSALS, ProcessKiller
from enforcer.mps.manager import MpsManager
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, holder

BOTH = (signal.SIGTERM, signal.SIGKILL)


class Handle(PidHandle):
    """A process that dies of some signals, and is waited for on a clock of its own."""

    def __init__(self, pid: int, dies_of: Iterable[signal.Signals] = BOTH) -> None:
        super().__init__(pid, -1)
        self.dies_of, self.got, self.waits = tuple(dies_of), list[signal.Signals](), list[float]()
        self.is_ended = self.is_gone = self.may_not = self.full = False
        self.ignored: tuple[signal.Signals, ...] = ()
        self.copies: list[Handle] = []
        self.closed = False

    def ended(self, seconds: float = 0.0) -> bool:
        self.waits.append(seconds)
        return self.is_ended

    def ignores(self, number: signal.Signals, proc: Path = Path("/proc")) -> bool:
        return number in self.ignored

    def send(self, number: signal.Signals) -> bool:
        if self.may_not:
            raise PermissionError(1, "Operation not permitted")
        if self.is_gone or self.is_ended:
            return False
        self.got.append(number)
        self.is_ended = number in self.dies_of
        return True

    def duplicate(self) -> "Handle":
        if self.full:
            raise OSError(24, "Too many open files")
        self.copies.append(Handle(self.pid, self.dies_of))
        return self.copies[-1]

    def close(self) -> None:
        self.closed = True


class Mps:
    """Answers as scripted, and notes what it is asked."""

    def __init__(self, *, answer: bool | None = None, reason: Reason | None = None, fails: bool = False) -> None:
        self.answer, self.reason, self.fails = answer, reason, fails
        self.asked: list[tuple[int, str | None]] = []
        self.may_end: list[Callable[[], bool]] = []

    def terminate(self, pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        self.asked.append((pid, gpu))
        self.may_end.append(ended)
        if self.fails:
            raise MpsError("nobody answers", self.reason)
        return self.answer


def _pinned(handle: Handle, container: str = CONTAINER) -> PinnedProcess:
    return PinnedProcess(holder(handle.pid, 9000, container), handle=handle)


def _killer(mps: Mps | None = None) -> ProcessKiller:
    return ProcessKiller(mps or Mps())


def _kill(killer: ProcessKiller, *group: PinnedProcess) -> None:
    """SIGTERM, wait 2 s, SIGKILL, wait 5 s; as ``ContainerKill`` does it."""
    for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        killer.signal_and_wait([each for each in group if each.result is None], number, seconds)
    for process in group:
        if process.result is None:
            killer.give_up(process)


def test_without_mps_no_process_is_a_client() -> None:
    assert MpsManager().terminate(1, GPU, lambda: False) is None


@pytest.mark.parametrize(
    ("mps", "released", "steps"),
    [
        (Mps(answer=True), True, ["terminate_client"]),
        (Mps(), True, []),
        (Mps(answer=False), False, ["terminate_client refused"]),
        (Mps(fails=True), False, ["terminate_client refused"]),
        (Mps(fails=True, reason=Reason.MPS_CONTROL_BLOCKED), True, ["MpsControlBlocked"]),
    ],
    ids=["let go", "no client", "refused", "silent", "blocked"],
)
def test_mps_is_asked_on_that_gpu_with_the_pinned_process(mps: Mps, steps: list[str], *, released: bool) -> None:
    handle = Handle(501)
    process = _pinned(handle)
    assert _killer(mps).terminate_mps_client(process, GPU) is released
    assert (mps.asked, process.steps) == ([(501, GPU)], steps)
    assert process.result is (None if released else Reason.TERMINATE_FAILED)
    assert mps.may_end[0]() is False
    handle.is_ended = True
    assert mps.may_end[0]() is True


def test_of_one_that_has_ended_mps_is_not_asked() -> None:
    mps, handle = Mps(answer=False), Handle(501)
    handle.is_ended = True
    process = _pinned(handle)
    assert _killer(mps).terminate_mps_client(process, GPU)
    assert (mps.asked, process.steps, process.result) == ([], [], None)


def test_each_container_has_refusals_of_its_own() -> None:
    killer = _killer(Mps(answer=False))
    for n in range(REFUSALS - 1):
        assert not killer.terminate_mps_client(_pinned(Handle(500 + n)), GPU)
        assert not killer.terminate_mps_client(_pinned(Handle(600 + n), NEIGHBOUR), GPU)
    assert killer.terminate_mps_client(_pinned(Handle(510)), GPU)
    assert killer.terminate_mps_client(_pinned(Handle(511)), GPU), (
        "and goes on to be ended by signals until one of it has ended"
    )
    assert killer.terminate_mps_client(_pinned(Handle(610), NEIGHBOUR), GPU)


def test_once_one_of_it_has_ended_a_containers_refusals_are_counted_again() -> None:
    killer = _killer(Mps(answer=False))
    for n in range(REFUSALS - 1):
        killer.terminate_mps_client(_pinned(Handle(500 + n)), GPU)
        killer.terminate_mps_client(_pinned(Handle(600 + n), NEIGHBOUR), GPU)
    ended = _pinned(Handle(510))
    assert killer.terminate_mps_client(ended, GPU)
    _kill(killer, ended)
    assert ended.result is Reason.KILLED
    assert not killer.terminate_mps_client(_pinned(Handle(511)), GPU)
    assert killer.terminate_mps_client(_pinned(Handle(610), NEIGHBOUR), GPU), "those of others are not"


def test_not_more_containers_are_counted_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_REFUSED", 2)
    killer = _killer(Mps(answer=False))
    for container in ("a" * 64, "b" * 64, "c" * 64):
        for _ in range(REFUSALS - 1):
            assert not killer.terminate_mps_client(_pinned(Handle(501), container), GPU)
    assert not killer.terminate_mps_client(_pinned(Handle(501), "a" * 64), GPU), "three are one too many"


def test_of_as_many_as_there_may_be_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_REFUSED", 2)
    killer = _killer(Mps(answer=False))
    for container in ("a" * 64, "b" * 64):
        for _ in range(REFUSALS - 1):
            assert not killer.terminate_mps_client(_pinned(Handle(501), container), GPU)
    assert killer.terminate_mps_client(_pinned(Handle(501), "a" * 64), GPU)


def test_all_get_sigterm_are_waited_for_together_then_get_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    soft, hard = Handle(501), Handle(502, [signal.SIGKILL])

    def wait(seconds: float = 0.0) -> bool:
        hard.waits.append(seconds)
        now[0] += 0.5 if seconds else 0.0
        return hard.is_ended

    monkeypatch.setattr(hard, "ended", wait)
    group = [_pinned(hard), _pinned(soft)]
    _kill(_killer(), *group)
    assert (soft.got, hard.got) == ([signal.SIGTERM], [signal.SIGTERM, signal.SIGKILL])
    assert (hard.waits, soft.waits) == ([2.0, 5.0], [1.5])
    assert [each.result for each in group] == [Reason.KILLED, Reason.KILLED]
    assert [each.steps for each in group] == [["SIGTERM", "SIGKILL"], ["SIGTERM"]]


def test_no_wait_is_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 200.0, 300.0, 400.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    handle = Handle(501, [])
    _kill(_killer(), _pinned(handle))
    assert handle.waits == [0.0, 0.0]


def test_one_that_ignores_it_gets_no_sigterm_and_is_not_waited_for() -> None:
    handle = Handle(501)
    handle.ignored = (signal.SIGTERM,)
    process = _pinned(handle)
    _kill(_killer(), process)
    assert (handle.got, process.steps) == ([signal.SIGKILL], ["SIGKILL"])
    assert len(handle.waits) == 1
    assert process.result is Reason.KILLED


def test_sigkill_is_sent_whether_it_is_ignored_or_not() -> None:
    handle = Handle(501, [signal.SIGKILL])
    handle.ignored = (signal.SIGKILL,)
    process = _pinned(handle)
    _kill(_killer(), process)
    assert handle.got == [signal.SIGTERM, signal.SIGKILL]


def test_one_that_was_gone_before_anything_was_done_is_gone_and_not_killed() -> None:
    handle = Handle(501)
    handle.is_gone = True
    process = _pinned(handle)
    _kill(_killer(), process)
    assert (process.result, process.steps, handle.waits) == (Reason.ALREADY_EXITED, [], [])


def test_one_that_went_after_mps_let_go_of_it_was_killed() -> None:
    handle = Handle(501)
    process = _pinned(handle)
    killer = _killer(Mps(answer=True))
    killer.terminate_mps_client(process, GPU)
    handle.is_gone = True
    _kill(killer, process)
    assert (process.result, process.steps) == (Reason.KILLED, ["terminate_client"])


def test_one_that_may_not_be_signalled_is_unkillable_and_not_tried_again() -> None:
    handle, other = Handle(501), Handle(502)
    handle.may_not = True
    group = [_pinned(handle), _pinned(other)]
    killer = _killer()
    _kill(killer, *group)
    assert (group[0].result, group[0].steps) == (Reason.UNKILLABLE, ["SIGTERM not permitted"])
    assert handle.waits == []
    assert killer.unkillable == {}, "nothing is pending for it"
    assert group[1].result is Reason.KILLED


def test_one_that_does_not_end_stays_pinned_until_it_does() -> None:
    handle = Handle(501, [])
    process = _pinned(handle)
    killer = _killer()
    _kill(killer, process)
    assert process.result is Reason.UNKILLABLE
    identity = process.identity
    (copy,) = handle.copies
    assert killer.unkillable == {identity: copy}
    assert killer.unkillable_pids() == {(501, 5010)}
    assert not copy.closed
    copy.is_ended = True
    assert killer.unkillable_pids() == frozenset()
    assert killer.unkillable == {}
    assert copy.closed


def test_where_it_cannot_stay_pinned_it_is_unkillable_all_the_same() -> None:
    handle, other = Handle(501, []), Handle(502, [])
    handle.full = True
    group = [_pinned(handle), _pinned(other)]
    killer = _killer()
    _kill(killer, *group)
    assert [each.result for each in group] == [Reason.UNKILLABLE] * 2
    assert killer.unkillable_pids() == {(502, 5020)}


def test_not_more_stay_pinned_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_UNKILLABLE", 2)
    killer = _killer()
    group = [_pinned(Handle(pid, [])) for pid in (501, 502, 503)]
    _kill(killer, *group)
    assert [each.result for each in group] == [Reason.UNKILLABLE] * 3
    assert killer.unkillable_pids() == {(501, 5010), (502, 5020)}


def test_one_to_which_something_was_done_was_not_spared() -> None:
    process = _pinned(Handle(501))
    process.result = Reason.IDENTITY_CHANGED
    assert process.spared
    process.steps.append("terminate_client refused")
    assert process.spared, "that came to nothing"
    process.steps.append("terminate_client")
    assert not process.spared


def test_one_that_went_after_no_more_than_a_refusal_is_gone() -> None:
    killer = _killer(Mps(answer=False))
    for _ in range(REFUSALS):
        process = _pinned(handle := Handle(501))
        released = killer.terminate_mps_client(process, GPU)
    assert released
    handle.is_gone = True
    _kill(killer, process)
    assert (process.result, process.steps) == (Reason.ALREADY_EXITED, ["terminate_client refused"])
