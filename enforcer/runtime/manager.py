"""Run the parts of a process beside its main loop: periodic tasks, servers, and checks of readiness and problems.

``enforcer/build.py`` adds the parts; ``enforcer/main.py`` starts and stops them.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from enforcer.runtime.problem import Problem
from gpushare.reasons import Reason
from gpushare.signals import StopEvent

log = structlog.get_logger()

SCHEDULER: Final = "scheduler"
"""The thread of the tasks that never wait for anything."""
STOP_SECONDS: Final = 5.0
Check = Callable[[], str | Iterable[str] | None]
"""Returns one problem, several, or none."""
Call = Callable[[], object]


class Wake(threading.Event):
    """An event that makes the tasks added with it due at once. Any thread may set it."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: list[threading.Event] = []

    def set(self) -> None:
        """Set the event and wake the threads of its tasks."""
        super().set()
        for event in self._threads:
            event.set()

    def attach(self, event: threading.Event) -> None:
        """Set another event whenever this one is set."""
        self._threads.append(event)


@dataclass(slots=True)
class _Task:
    name: str
    run_once: Call
    every: float
    wake: Wake | None
    due: float = 0.0

    def run_if_due(self) -> None:
        """Run once if the interval has passed or the task was woken; a failure is logged and does not end the task."""
        woken = self.wake is not None and self.wake.is_set()
        if not woken and time.monotonic() < self.due:
            return
        if self.wake is not None:
            self.wake.clear()
        try:
            self.run_once()
        except Exception:  # a bug in one run must not end all later ones
            log.exception("periodic task failed", reason=str(Reason.INTERNAL), task=self.name)
        self.due = time.monotonic() + self.every


class _TaskThread(threading.Thread):
    """Runs tasks one after the other until the process stops."""

    def __init__(self, name: str, stopped: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._stopped, self._tasks, self.woken = stopped, list[_Task](), threading.Event()

    def add(self, task: _Task) -> None:
        self._tasks.append(task)
        if task.wake is not None:
            task.wake.attach(self.woken)
        self.woken.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            self.woken.clear()
            for task in tuple(self._tasks):
                if not self._stopped.is_set():
                    task.run_if_due()
            due = min(task.due for task in self._tasks) - time.monotonic()
            self.woken.wait(min(max(0.0, due), threading.TIMEOUT_MAX))


class Manager:
    """Holds the parts of a process. The servers start first, in the order in which they are added; then the tasks.

    Attributes:
        stopped: set when the process is to stop.
    """

    def __init__(self) -> None:
        self.stopped: Final = StopEvent()
        self._servers: list[tuple[str, Call | None, Call | None]] = []
        self._stops: list[tuple[str, Call]] = []
        self._threads: dict[str, _TaskThread] = {}
        self._lock, self._running = threading.Lock(), False
        self._ready_checks, self._problem_checks = list[Check](), list[tuple[Check, Reason]]()

    def add(
        self, name: str, run_once: Call, *, every: float = math.inf, wake: Wake | None = None, thread: str = ""
    ) -> None:
        """Run a task periodically, first at the start, or at once if the process has started.

        Args:
            name: of the task, for the log.
            run_once: the task.
            every: seconds from the end of one run to the next; by default it runs only when woken.
            wake: makes the task due when set.
            thread: shared by the tasks that name it; by default the task has a thread of its own.
        """
        with self._lock:
            found = self._threads.setdefault(thread or name, _TaskThread(thread or name, self.stopped))
            found.add(_Task(name, run_once, every, wake))
            if self._running and found.ident is None:
                found.start()

    def add_server(self, name: str, start: Call | None, stop: Call | None) -> None:
        """Have a server start before the tasks, and stop after them and after the servers that are added later.

        Args:
            name: of the server, for the log.
            start: returns once the server works; may raise. ``None``: it works already.
            stop: waited for five seconds at most. ``None``: it ends with the process.
        """
        self._servers.append((name, start, stop))

    def add_ready_check(self, check: Check) -> None:
        """Have a check say why the process is not ready."""
        self._ready_checks.append(check)

    def add_problem_check(self, check: Check, reason: Reason) -> None:
        """Have a check say what does not work; ``reason`` is its Reason in the metrics."""
        self._problem_checks.append((check, reason))

    def not_ready(self) -> str | None:
        """Return why the process is not ready; ``None`` if it is."""
        return next(_answers(self._ready_checks), None)

    def problems(self) -> list[Problem]:
        """Return what does not work, in the order of the checks."""
        return [Problem(each, reason) for check, reason in self._problem_checks for each in _answers([check])]

    def start(self) -> None:
        """Start all parts. Raises what the start of a server raises; ``stop`` stops those before it."""
        for name, start, stop in self._servers:
            if start is not None:
                start()
            if stop is not None:
                self._stops.append((name, stop))
        with self._lock:
            self._running = True
            for thread in self._threads.values():
                thread.start()

    def stop(self) -> None:
        """Stop the tasks, then the servers, the last one first. What takes longer than five seconds is left behind."""
        self.stopped.set()
        threads, end = [each for each in self._threads.values() if each.is_alive()], time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.woken.set()
        for thread in threads:
            _join(thread, end)
        for name, stop in reversed(self._stops):
            stopping = threading.Thread(target=stop, name=name, daemon=True)
            stopping.start()
            _join(stopping, time.monotonic() + STOP_SECONDS)


def _join(thread: threading.Thread, end: float) -> None:
    thread.join(max(0.0, end - time.monotonic()))
    if thread.is_alive():
        log.warning("component did not stop in time", reason=str(Reason.INTERNAL), part=thread.name)


def _answers(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        found = check()
        yield from (found,) if isinstance(found, str) else found or ()
