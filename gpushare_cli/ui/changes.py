"""What changed since a page was made: a number that grows, values that are read again while pages ask, and curves."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from threading import Condition, Event, Lock, Thread
from typing import Final, Generic, TypeVar

from gpushare.errors import GpuShareError
from gpushare.kube_client import GARBAGE

T = TypeVar("T")
INTEREST: Final = 30.0
"""Seconds for which a value is read again after a page asked for it."""
KEEP: Final = 10.0
"""Seconds after which pages are made again also where nothing changed: so a page that is open goes on asking."""
WINDOW: Final = 900.0
"""Seconds of a curve."""
UNREADABLE: Final = "an object of the cluster has another shape than Kubernetes gives it"
POINTS: Final = 300
"""Of one curve at most."""
CURVES: Final = 20_000
"""So many are kept; of more, those that have ended are dropped."""


class Changes:
    """A number that grows with every change; pages wait for the next one.

    Args:
        once: whether values are read once and never again, for a snapshot.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.once = once
        self._number, self._news, self.closed = 0, Condition(), Event()

    def note(self) -> None:
        """Say that something changed."""
        with self._news:
            self._number += 1
            self._news.notify_all()

    def close(self) -> None:
        """End what reads for pages."""
        self.closed.set()
        self.note()

    @property
    def number(self) -> int:
        """The number now."""
        return self._number

    def wait(self, seen: int, seconds: float) -> int:
        """Return the number once it is not ``seen`` any more, or after so many seconds."""
        with self._news:
            self._news.wait_for(lambda: self._number != seen, seconds)
            return self._number


class Polled(Generic[T]):
    """A value that a thread reads again every ``seconds``, as long as pages ask for it.

    Args:
        read: reads it; it may raise ``GpuShareError``, which is the value then.
        seconds: between two reads.
        changes: hears of each new value.
    """

    def __init__(self, read: Callable[[], T], seconds: float, changes: Changes) -> None:
        self._read, self._seconds, self._changes = read, seconds, changes
        self._value: T | GpuShareError | None = None
        self._asked, self._runs, self._lock, self._ready = 0.0, False, Lock(), Event()

    def get(self, wait: float = 0.0) -> T | GpuShareError | None:
        """Return the last value; before the first one wait so many seconds for it, then ``None``."""
        with self._lock:
            self._asked = time.monotonic()
            if not self._runs:
                self._runs, self._value = True, None  # what was read before a pause is old
                self._ready.clear()
                Thread(target=self._poll, daemon=True).start()
        self._ready.wait(wait)
        return self._value

    def _poll(self) -> None:
        noted = 0.0
        while True:
            before = self._value
            try:
                self._value = self._read()
            except GpuShareError as error:
                self._value = error
            except GARBAGE as error:
                self._value = GpuShareError(f"{UNREADABLE}: {error!r:.200}")
            except RuntimeError:  # no more threads at the interpreter's end
                if self._changes.closed.is_set():
                    return
                raise
            self._ready.set()
            if not _same(before, self._value) or time.monotonic() - noted > KEEP:
                noted = time.monotonic()
                self._changes.note()
            if self._changes.once:
                return
            ended = self._changes.closed.wait(self._seconds)
            with self._lock:
                if ended or time.monotonic() - self._asked > INTEREST:
                    self._runs = False
                    return


def _same(one: object, other: object) -> bool:
    if isinstance(one, GpuShareError) and isinstance(other, GpuShareError):
        return one.message == other.message
    return one == other


class History:
    """Curves of the last ``WINDOW`` seconds: what was seen while pages were open."""

    def __init__(self) -> None:
        self._points = defaultdict[Hashable, deque[tuple[float, int]]](lambda: deque(maxlen=POINTS))
        self._lock = Lock()

    def add(self, key: Hashable, at: float, value: int | None) -> None:
        """Note a value at a time, in seconds of the monotonic clock; ``None`` is not noted."""
        with self._lock:
            if len(self._points) > CURVES:
                for old in [each for each, points in self._points.items() if not points or at - points[-1][0] > WINDOW]:
                    del self._points[old]
            points = self._points[key]
            if value is not None and (not points or points[-1][0] < at):
                points.append((at, value))

    def begin(self, key: Hashable, points: Sequence[tuple[float, int]]) -> None:
        """Put points before the first one of a curve, as many as it has room for."""
        with self._lock:
            mine = self._points[key]
            older = [each for each in points if not mine or each[0] < mine[0][0]]
            mine.extendleft(older[: -(POINTS - len(mine)) - 1 : -1])

    def of(self, key: Hashable, now: float) -> list[tuple[float, int]]:
        """Return the points of a curve as seconds before ``now`` (negative) and value."""
        return [(at - now, value) for at, value in list(self._points.get(key, ())) if now - at <= WINDOW]
