"""What runs beside the loop: when tasks run, on which thread, and in which order parts start and stop."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
from structlog.testing import capture_logs

from enforcer.runtime import manager as module
from enforcer.runtime.manager import Manager, Wake
from gpushare.errors import ConfigError
from gpushare.reasons import Reason
from tests.support.patience import holds_within, patient


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.stop()


class Runs:
    """Counts the runs of a task, and notes the thread of the last one."""

    def __init__(self) -> None:
        self._count, self.thread = threading.Semaphore(0), ""

    def __call__(self) -> None:
        self.thread = threading.current_thread().name
        self._count.release()

    def comes(self, times: int = 1, within: float = 20.0) -> bool:
        return all(self._count.acquire(timeout=patient(within)) for _ in range(times))

    def is_over(self) -> bool:
        return not self._count.acquire(timeout=0.1)


def test_a_task_runs_again_and_again_until_the_process_stops(manager: Manager) -> None:
    runs = Runs()
    manager.add("task", runs, every=0.001)
    assert runs.is_over(), "nothing runs before the start"
    manager.start()
    assert runs.comes(3)
    assert runs.thread == "task"
    manager.stop()
    assert "task" not in {each.name for each in threading.enumerate()}


def test_a_task_that_is_woken_runs_at_once_and_once(manager: Manager) -> None:
    runs, wake = Runs(), Wake()
    manager.add("task", runs, wake=wake)
    wake.set()
    manager.start()
    assert runs.comes()
    assert runs.is_over()
    wake.set()
    assert runs.comes()
    assert runs.is_over()


def test_a_task_that_is_woken_while_it_runs_runs_once_more(manager: Manager) -> None:
    wake, begun, go_on, runs = Wake(), threading.Event(), threading.Event(), list[int]()

    def run() -> None:
        runs.append(1)
        begun.set()
        go_on.wait(patient(20))

    manager.add("task", run, wake=wake)
    manager.start()
    assert begun.wait(patient(20))
    wake.set()
    go_on.set()
    assert holds_within(lambda: len(runs) == 2, 20)


def test_a_run_that_fails_is_logged_and_does_not_end_the_later_ones(manager: Manager) -> None:
    runs = Runs()

    def fail() -> None:
        runs()
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        manager.add("broken", fail, every=0.001)
        manager.start()
        assert runs.comes(3)
        manager.stop()
    assert {(each["event"], each["task"]) for each in logs} == {("periodic task failed", "broken")}


def test_tasks_that_name_a_thread_take_turns_on_it_and_only_the_one_that_is_woken_runs(manager: Manager) -> None:
    one, other, alone, wake = Runs(), Runs(), Runs(), Wake()
    manager.add("one", one, wake=wake, thread="both")
    manager.add("other", other, thread="both")
    manager.add("alone", alone)
    manager.start()
    assert one.comes()
    assert other.comes()
    assert alone.comes()
    assert (one.thread, other.thread, alone.thread) == ("both", "both", "alone")
    wake.set()
    assert one.comes()
    assert other.is_over()


def test_one_event_wakes_the_tasks_of_several_threads(manager: Manager) -> None:
    one, other, wake = Runs(), Runs(), Wake()
    manager.add("one", one, wake=wake)
    manager.start()
    assert one.comes()
    second = Wake()
    wake.attach(second)
    manager.add("other", other, wake=second)
    assert other.comes(), "a task that is added later starts at once"
    wake.set()
    assert one.comes()
    assert other.comes()


def test_servers_start_in_order_before_the_tasks_and_stop_after_them_in_reverse(manager: Manager) -> None:
    order = list[str]()
    manager.add("task", lambda: order.append("task"))
    manager.add_server("first", lambda: order.append("start first"), lambda: order.append("stop first"))
    manager.add_server("second", lambda: order.append("start second"), None)
    manager.add_server("third", None, lambda: order.append(f"stop third {'task' in alive()}"))
    manager.start()
    assert holds_within(lambda: "task" in order, 20)
    manager.stop()
    assert order == ["start first", "start second", "task", "stop third False", "stop first"]


def alive() -> set[str]:
    return {each.name for each in threading.enumerate()}


def test_where_a_server_cannot_start_those_before_it_are_stopped_and_no_task_runs(manager: Manager) -> None:
    order, runs = list[str](), Runs()

    def fail() -> None:
        raise ConfigError("the address is taken")

    manager.add("task", runs)
    manager.add_server("first", lambda: order.append("start"), lambda: order.append("stop"))
    manager.add_server("second", fail, lambda: order.append("never"))
    with pytest.raises(ConfigError):
        manager.start()
    manager.stop()
    assert order == ["start", "stop"]
    assert runs.is_over()


def test_parts_that_do_not_stop_are_left_behind_and_the_others_are_stopped(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    order, go_on, begun = list[str](), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait()

    manager.add("task", hang)
    manager.add_server("first", None, lambda: order.append("stop"))
    manager.add_server("second", None, hang)
    manager.start()
    assert begun.wait(patient(20))
    with capture_logs() as logs:
        manager.stop()
    go_on.set()
    assert [each["part"] for each in logs] == ["task", "second"]
    assert order == ["stop"]


def test_checks_are_asked_each_time_in_their_order(manager: Manager) -> None:
    wrong: dict[str, str | None] = {"one": None, "two": None}
    assert (manager.not_ready(), manager.problems()) == (None, [])
    for name in ("one", "two"):
        manager.add_ready_check(partial(wrong.get, name))
        manager.add_problem_check(partial(wrong.get, name), Reason.UNKNOWN)
    manager.add_problem_check(lambda: iter(["several", "more"]), Reason.CONTENDED)
    assert (manager.not_ready(), manager.problems()) == (None, ["several", "more"])
    assert {each.reason for each in manager.problems()} == {Reason.CONTENDED}
    wrong["two"] = "not registered"
    assert (manager.not_ready(), manager.problems()) == ("not registered", ["not registered", "several", "more"])
    wrong["one"] = "no GPU"
    assert (manager.not_ready(), manager.problems()[:2]) == ("no GPU", ["no GPU", "not registered"])
