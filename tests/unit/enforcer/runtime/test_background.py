"""Doing what may hang in a thread of its own."""

import threading
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from enforcer.runtime.background import BackgroundExecutor


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds up what waits for it."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_what_is_done_in_time_is_returned_and_what_fails_is_raised() -> None:
    aside = BackgroundExecutor("the disk", wait=60)
    assert aside.run_within("a", lambda: 1, 0) == 1
    with pytest.raises(OSError, match="no space left"):
        aside.run_within("a", lambda: _fail(OSError("no space left")), 0)
    assert aside.run_within("a", lambda: 2, 0) == 2


def test_one_thread_does_all_that_comes_soon_and_ends_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.runtime.background.LINGER_SECONDS", 60.0)
    aside = BackgroundExecutor("the disk", wait=60)
    threads = {aside.run_within("a", threading.current_thread, threading.main_thread()) for _ in range(20)}
    assert len(threads) == 1
    monkeypatch.setattr("enforcer.runtime.background.LINGER_SECONDS", 0.01)
    other = BackgroundExecutor("the disk", wait=60)
    for _ in range(3):
        thread = other.run_within("a", threading.current_thread, threading.main_thread())
        assert thread is not threading.main_thread()
        thread.join(60)
        assert not thread.is_alive()


def _fail(error: Exception) -> int:
    raise error


def test_what_takes_too_long_is_let_be_and_done_all_the_same(gate: threading.Event) -> None:
    aside, done = BackgroundExecutor("the disk", wait=0.05), threading.Event()

    def slow() -> str:
        gate.wait()
        done.set()
        return "done"

    with capture_logs() as logs:
        for _ in range(3):
            assert aside.run_within("a", slow, "later") == "later"
    assert [each["event"] for each in logs] == ["disk hangs"], "once"
    assert aside.problem == "the disk does not answer, so all writes to it wait"
    gate.set()
    assert done.wait(60)
    with capture_logs() as logs:
        aside.reset_budget()
        while aside.run_within("b", lambda: "done", "later") != "done":
            aside.reset_budget()
    assert [each["event"] for each in logs] == ["disk responsive again"]


def test_nobody_waits_for_what_already_hangs(gate: threading.Event) -> None:
    aside, begun = BackgroundExecutor("the disk", wait=600), threading.Event()

    def hangs() -> None:
        begun.set()
        gate.wait()

    aside.submit("a", hangs)
    assert begun.wait(60)
    aside._begun = time.monotonic() - 601
    assert aside.run_within("b", lambda: "done", "later") == "later"


def test_in_one_turn_nobody_waits_for_longer_than_once(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [0.0], list[float]()
    monkeypatch.setattr("enforcer.runtime.background.time.monotonic", lambda: now[0])
    aside = BackgroundExecutor("the disk", wait=10)

    class Slow:
        def exception(self, seconds: float) -> None:
            waited.append(seconds)
            now[0] += min(seconds, 6)

        def done(self) -> bool:
            return True

    for _ in range(3):
        aside.wait_briefly(Slow())  # type: ignore[arg-type]
    aside.reset_budget()
    aside.wait_briefly(Slow())  # type: ignore[arg-type]
    assert waited == [10, 4, 0, 10]


def test_what_waits_gives_way_to_the_next_of_its_kind_and_is_done_when_that_is(gate: threading.Event) -> None:
    aside, done = BackgroundExecutor("the disk", wait=60), list[str]()
    aside.submit("hangs", gate.wait)
    first = aside.submit("status", lambda: done.append("old"))
    other = aside.submit("memory", lambda: done.append("memory"))
    last = aside.submit("status", lambda: done.append("new"))
    assert not first.done()
    gate.set()
    for each in (first, other, last):
        each.result(60)
    assert done == ["new", "memory"]


def test_without_another_thread_who_asks_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    aside, who = BackgroundExecutor("the disk"), list[str]()
    aside.run_within("a", lambda: who.append(threading.current_thread().name), None)
    aside.run_within("b", lambda: who.append(threading.current_thread().name), None)
    assert who == [threading.current_thread().name] * 2


def test_no_thread_is_left_behind() -> None:
    worker = BackgroundExecutor("the disk", wait=60).run_within("a", threading.current_thread, threading.main_thread())
    assert worker is not threading.main_thread()
    worker.join(60)
    assert not worker.is_alive()
