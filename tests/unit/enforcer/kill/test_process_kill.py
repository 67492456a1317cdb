"""The steps by which one process is ended, each of them alone."""

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from enforcer.attribution.procfs import PidHandle
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.kill import process_kill as steps_module
from enforcer.kill.pidfd_target import Victim
from enforcer.kill.process_kill import REFUSALS, KillTimeouts, Kin, NullMpsClient, ProcessKill, ProcessKiller, never
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
        self.deaf_to: tuple[signal.Signals, ...] = ()
        self.copies: list[Handle] = []
        self.closed = False

    def ended(self, seconds: float = 0.0) -> bool:
        self.waits.append(seconds)
        return self.is_ended

    def deaf(self, number: signal.Signals, proc: Path = Path("/proc")) -> bool:
        return number in self.deaf_to

    def send(self, number: signal.Signals) -> bool:
        if self.may_not:
            raise PermissionError(1, "Operation not permitted")
        if self.is_gone or self.is_ended:
            return False
        self.got.append(number)
        self.is_ended = number in self.dies_of
        return True

    def again(self) -> "Handle":
        if self.full:
            raise OSError(24, "Too many open files")
        self.copies.append(Handle(self.pid, self.dies_of))
        return self.copies[-1]

    def close(self) -> None:
        self.closed = True


class Mps:
    """Answers as it is told, and notes what it is asked."""

    def __init__(self, *, answer: bool | None = None, reason: Reason | None = None, fails: bool = False) -> None:
        self.answer, self.reason, self.fails = answer, reason, fails
        self.asked: list[tuple[int, str | None]] = []
        self.may_end: list[Callable[[], bool]] = []

    def terminate(self, pid: int, gpu: str | None = None, ended: Callable[[], bool] = never) -> bool | None:
        self.asked.append((pid, gpu))
        self.may_end.append(ended)
        if self.fails:
            raise MpsError("nobody answers", self.reason)
        return self.answer


def _climb(handle: Handle, container: str = CONTAINER) -> ProcessKill:
    return ProcessKill(Victim(holder(handle.pid, 9000, container), handle))


def _nothing(_: Sequence[ProcessKill]) -> None:
    """Spare nobody."""


def _ladder(mps: Mps | None = None) -> ProcessKiller:
    return ProcessKiller(mps or Mps(), KillTimeouts(term=2.0, kill=5.0))


def test_nobody_who_holds_nobody_says_that_it_has_ended() -> None:
    assert never() is False
    assert NullMpsClient().terminate(1, GPU, never) is None  # type: ignore[func-returns-value]


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
def test_mps_is_asked_on_that_gpu_by_somebody_who_holds_the_process(
    mps: Mps, steps: list[str], *, released: bool
) -> None:
    handle = Handle(501)
    climb = _climb(handle)
    assert _ladder(mps).release(climb, GPU) is released
    assert (mps.asked, climb.steps) == ([(501, GPU)], steps)
    assert climb.result is (None if released else Reason.TERMINATE_FAILED)
    assert mps.may_end[0]() is False
    handle.is_ended = True
    assert mps.may_end[0]() is True


def test_of_one_that_has_ended_mps_is_not_asked() -> None:
    mps, handle = Mps(answer=False), Handle(501)
    handle.is_ended = True
    climb = _climb(handle)
    assert _ladder(mps).release(climb, GPU)
    assert (mps.asked, climb.steps, climb.result) == ([], [], None)


def test_each_container_has_refusals_of_its_own() -> None:
    ladder = _ladder(Mps(answer=False))
    for n in range(REFUSALS - 1):
        assert not ladder.release(_climb(Handle(500 + n)), GPU)
        assert not ladder.release(_climb(Handle(600 + n), NEIGHBOUR), GPU)
    assert ladder.release(_climb(Handle(510)), GPU)
    assert ladder.release(_climb(Handle(511)), GPU), "and goes on to be ended by signals until one of it has ended"
    assert ladder.release(_climb(Handle(610), NEIGHBOUR), GPU)


def test_once_one_of_it_has_ended_a_containers_refusals_are_counted_anew() -> None:
    ladder = _ladder(Mps(answer=False))
    for n in range(REFUSALS - 1):
        ladder.release(_climb(Handle(500 + n)), GPU)
        ladder.release(_climb(Handle(600 + n), NEIGHBOUR), GPU)
    ended = _climb(Handle(510))
    assert ladder.release(ended, GPU)
    ladder.climb([ended], GPU, _nothing)
    assert ended.result is Reason.KILLED
    assert not ladder.release(_climb(Handle(511)), GPU)
    assert ladder.release(_climb(Handle(610), NEIGHBOUR), GPU), "those of others are not"


def test_not_more_containers_are_counted_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_REFUSED", 2)
    ladder = _ladder(Mps(answer=False))
    for container in ("a" * 64, "b" * 64, "c" * 64):
        for _ in range(REFUSALS - 1):
            assert not ladder.release(_climb(Handle(501), container), GPU)
    assert not ladder.release(_climb(Handle(501), "a" * 64), GPU), "three are one too many: all begin anew"


def test_of_as_many_as_there_may_be_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_REFUSED", 2)
    ladder = _ladder(Mps(answer=False))
    for container in ("a" * 64, "b" * 64):
        for _ in range(REFUSALS - 1):
            assert not ladder.release(_climb(Handle(501), container), GPU)
    assert ladder.release(_climb(Handle(501), "a" * 64), GPU)


def test_all_are_told_then_waited_for_together_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    soft, hard = Handle(501), Handle(502, [signal.SIGKILL])

    def wait(seconds: float = 0.0) -> bool:
        hard.waits.append(seconds)
        now[0] += 0.5 if seconds else 0.0
        return hard.is_ended

    monkeypatch.setattr(hard, "ended", wait)
    group = [_climb(hard), _climb(soft)]
    _ladder().climb(group, GPU, _nothing)
    assert (soft.got, hard.got) == ([signal.SIGTERM], [signal.SIGTERM, signal.SIGKILL])
    assert (hard.waits, soft.waits) == ([2.0, 5.0], [1.5])
    assert [each.result for each in group] == [Reason.KILLED, Reason.KILLED]
    assert [each.steps for each in group] == [["SIGTERM", "SIGKILL"], ["SIGTERM"]]


def test_no_wait_is_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 200.0, 300.0, 400.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    handle = Handle(501, [])
    _ladder().climb([_climb(handle)], GPU, _nothing)
    assert handle.waits == [0.0, 0.0]


def test_one_with_a_result_already_is_let_be() -> None:
    handle = Handle(501)
    climb = _climb(handle)
    climb.result = Reason.TERMINATE_FAILED
    _ladder().climb([climb], GPU, _nothing)
    assert (handle.got, climb.result) == ([], Reason.TERMINATE_FAILED)


def test_one_that_is_deaf_to_it_gets_no_sigterm_and_is_not_waited_for() -> None:
    handle = Handle(501)
    handle.deaf_to = (signal.SIGTERM,)
    climb = _climb(handle)
    _ladder().climb([climb], GPU, _nothing)
    assert (handle.got, climb.steps) == ([signal.SIGKILL], ["SIGKILL"])
    assert len(handle.waits) == 1
    assert climb.result is Reason.KILLED


def test_sigkill_asks_nobody_whether_it_is_heard() -> None:
    handle = Handle(501, [signal.SIGKILL])
    handle.deaf_to = (signal.SIGKILL,)
    climb = _climb(handle)
    _ladder().climb([climb], GPU, _nothing)
    assert handle.got == [signal.SIGTERM, signal.SIGKILL]


def test_one_that_was_gone_before_anything_was_done_is_gone_and_not_killed() -> None:
    handle = Handle(501)
    handle.is_gone = True
    climb = _climb(handle)
    _ladder().climb([climb], GPU, _nothing)
    assert (climb.result, climb.steps, handle.waits) == (Reason.ALREADY_EXITED, [], [])


def test_one_that_went_after_mps_let_go_of_it_was_killed() -> None:
    handle = Handle(501)
    climb = _climb(handle)
    ladder = _ladder(Mps(answer=True))
    ladder.release(climb, GPU)
    handle.is_gone = True
    ladder.climb([climb], GPU, _nothing)
    assert (climb.result, climb.steps) == (Reason.KILLED, ["terminate_client"])


def test_one_that_we_may_not_signal_is_said_to_be_so_and_not_tried_again() -> None:
    handle, other = Handle(501), Handle(502)
    handle.may_not = True
    group = [_climb(handle), _climb(other)]
    ladder = _ladder()
    ladder.climb(group, GPU, _nothing)
    assert (group[0].result, group[0].steps) == (Reason.UNKILLABLE, ["SIGTERM not permitted"])
    assert handle.waits == []
    assert ladder.hung == {}, "nothing is pending for it"
    assert group[1].result is Reason.KILLED


def _kin(pid: int, said: list[str]) -> Kin:
    return Victim(ProcessUsage(holder(pid, 1).identity, 1), Handle(pid)), said


def test_those_that_die_with_it_are_released_on_the_same_gpu_before_each_signal() -> None:
    mps, said = Mps(answer=True), list[str]()
    handle = Handle(501, [signal.SIGKILL])
    climb = _climb(handle)
    climb.kin = lambda: [_kin(502, said)]
    _ladder(mps).climb([climb], GPU, _nothing)
    assert mps.asked == [(502, GPU), (502, GPU)]
    assert said == ["terminate_client", "terminate_client"]
    assert climb.steps == ["SIGTERM", "SIGKILL"]


def test_while_one_of_those_is_refused_it_gets_no_signal_and_is_not_waited_for() -> None:
    mps, said = Mps(answer=False), list[str]()
    handle = Handle(501)
    climb = _climb(handle)
    climb.kin = lambda: [_kin(502, said)]
    _ladder(mps).climb([climb], GPU, _nothing)
    assert (handle.got, handle.waits, climb.result) == ([], [], Reason.TERMINATE_FAILED)
    assert said == ["terminate_client refused"]


def test_one_that_does_not_end_is_held_by_a_handle_of_our_own_until_it_does() -> None:
    handle = Handle(501, [])
    climb = _climb(handle)
    ladder = _ladder()
    ladder.climb([climb], GPU, _nothing)
    assert climb.result is Reason.UNKILLABLE
    identity = climb.victim.holder.identity
    (copy,) = handle.copies
    assert ladder.hung == {identity: Victim(climb.victim.holder, copy)}
    assert ladder.hanging() == {(501, 5010)}
    assert not copy.closed
    copy.is_ended = True
    assert ladder.hanging() == frozenset()
    assert ladder.hung == {}
    assert copy.closed


def test_where_it_cannot_be_held_it_is_unkillable_all_the_same() -> None:
    handle, other = Handle(501, []), Handle(502, [])
    handle.full = True
    group = [_climb(handle), _climb(other)]
    ladder = _ladder()
    ladder.climb(group, GPU, _nothing)
    assert [each.result for each in group] == [Reason.UNKILLABLE] * 2
    assert ladder.hanging() == {(502, 5020)}


def test_not_more_are_held_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "MAX_HUNG", 2)
    ladder = _ladder()
    group = [_climb(Handle(pid, [])) for pid in (501, 502, 503)]
    ladder.climb(group, GPU, _nothing)
    assert [each.result for each in group] == [Reason.UNKILLABLE] * 3
    assert ladder.hanging() == {(501, 5010), (502, 5020)}


def test_right_before_each_signal_it_is_looked_at_all_who_may_get_it() -> None:
    handles = [Handle(501, [signal.SIGKILL]), Handle(502), Handle(503)]
    group = [_climb(each) for each in handles]
    group[2].kin = lambda: [_kin(504, [])]
    mps, looked = Mps(answer=False), list[list[int]]()

    def look(ready: Sequence[ProcessKill]) -> None:
        looked.append([each.victim.handle.pid for each in ready])
        assert [len(each.got) for each in handles] == [len(looked) - 1, int(len(looked) > 1), 0]

    _ladder(mps).climb(group, GPU, look)
    assert looked == [[501, 502], [501]]
    assert [each.result for each in group] == [Reason.KILLED, Reason.KILLED, Reason.TERMINATE_FAILED]


def test_who_is_spared_then_gets_no_signal() -> None:
    handles = [Handle(501), Handle(502)]
    group = [_climb(each) for each in handles]

    def spare(ready: Sequence[ProcessKill]) -> None:
        for each in ready[:1]:
            each.result = Reason.BACK_UNDER_QUOTA

    _ladder().climb(group, GPU, spare)
    assert [each.got for each in handles] == [[], [signal.SIGTERM]]
    assert [each.spared for each in group] == [True, False]


def test_one_to_which_something_was_done_was_not_spared() -> None:
    climb = _climb(Handle(501))
    climb.result = Reason.IDENTITY_CHANGED
    assert climb.spared
    climb.steps.append("terminate_client refused")
    assert climb.spared, "that came to nothing"
    climb.steps.append("terminate_client")
    assert not climb.spared


def test_one_that_went_after_no_more_than_a_refusal_is_gone() -> None:
    ladder = _ladder(Mps(answer=False))
    for _ in range(REFUSALS):
        climb = _climb(handle := Handle(501))
        released = ladder.release(climb, GPU)
    assert released
    handle.is_gone = True
    ladder.climb([climb], GPU, _nothing)
    assert (climb.result, climb.steps) == (Reason.ALREADY_EXITED, ["terminate_client refused"])
