"""Run calls that may hang, such as writes to a disk, in the background, and wait for them for a limited time."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from gpushare.reasons import Reason

log = structlog.get_logger()

WAIT_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 2.0
"""A thread that has nothing to do waits so long for more: several things are done at every look, and a thread for each
costs more than they do."""
T = TypeVar("T")


@dataclass(slots=True)
class Task:
    """Something to be done, and who wants to know when it is."""

    run: Callable[[], Any]
    waiters: list[Future[Any]] = field(default_factory=list)


class BackgroundExecutor:
    """Does one thing after the other. Safe to use from several threads; one of them waits.

    Args:
        what: what may hang, for the problem.
        wait: seconds that are waited in a turn, all in all (1); for what already hangs nobody waits.
    """

    def __init__(self, what: str, wait: float | None = None) -> None:
        self._what, self._wait = what, WAIT_SECONDS if wait is None else wait
        self._lock = threading.Condition()
        self._tasks: dict[str, Task] = {}
        self._busy = False
        self._begun: float | None = None
        self._left, self._logged = self._wait, False

    def reset_budget(self) -> None:
        """Begin a turn."""
        self._left = self._wait

    @property
    def problem(self) -> str | None:
        """That it hangs; ``None`` while it does not."""
        begun = self._begun
        hangs = begun is not None and time.monotonic() - begun >= self._wait
        return f"{self._what} does not answer, so all writes to it wait" if hangs else None

    def submit(self, key: str, task: Callable[[], T]) -> Future[T]:
        """Have something done in its turn. What waits under the same key gives way to it, and is done when it is."""
        done = Future[T]()
        with self._lock:
            waits = self._tasks.setdefault(key, Task(task))
            waits.run = task
            waits.waiters.append(done)
            starts, self._busy = not self._busy, True
            self._lock.notify()
        if starts:
            self._start()
        return done

    def run_within(self, key: str, task: Callable[[], T], otherwise: T) -> T:
        """Have something done, and wait for it a moment.

        Args:
            key: see ``do``.
            task: what.
            otherwise: what to return where it takes longer; it is done all the same, later.

        Raises:
            Exception: what the task raises.
        """
        done = self.submit(key, task)
        return done.result() if self.wait_briefly(done) else otherwise

    def wait_briefly(self, done: Future[Any]) -> bool:
        """Wait a moment for what ``do`` returned; whether it is done."""
        began = time.monotonic()
        with suppress(TimeoutError):
            done.exception(max(0.0, self._left) if self.problem is None else 0)
        self._left -= time.monotonic() - began
        self._log()
        return done.done()

    def _log(self) -> None:
        """Log that it hangs, once, and that it does no longer."""
        problem, logged = self.problem, self._logged
        self._logged = problem is not None
        if problem is not None and not logged:
            log.warning("disk hangs", reason=str(Reason.AUDIT_UNWRITABLE), error=problem)
        elif logged and not self._logged:
            log.info("disk responsive again", reason=str(Reason.RECOVERED), what=self._what)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, args=[LINGER_SECONDS], name="disk", daemon=True).start()
        except RuntimeError:  # no more threads: then who asks does it
            self._work(0.0)

    def _work(self, linger: float) -> None:
        """Do what waits, and end a moment later: a thread that waits for nothing is one that nobody has to end."""
        while (task := self._next(linger)) is not None:
            self._begun = time.monotonic()
            found = Future[Any]()
            try:
                found.set_result(task.run())
            except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
                found.set_exception(error)
            self._begun = None
            for each in task.waiters:
                _pass_on(found, each)

    def _next(self, linger: float) -> Task | None:
        with self._lock:
            if not self._tasks:
                self._lock.wait(linger)
            first = next(iter(self._tasks), None)
            self._busy = first is not None
            return None if first is None else self._tasks.pop(first)


def _pass_on(found: Future[Any], to: Future[Any]) -> None:
    error = found.exception()
    if error is None:
        to.set_result(found.result())
    else:
        to.set_exception(error)
