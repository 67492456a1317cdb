"""The clocks of a test."""

from collections.abc import Callable

from enforcer.runtime.clock import Clock


class FakeClock(Clock):
    """Clocks that show what a test says.

    Args:
        get: the seconds of all clocks.
        wall: those of the wall clock, where it shows others.
    """

    def __init__(self, get: Callable[[], float], wall: Callable[[], float] | None = None) -> None:
        self._get, self._wall = get, wall or get

    def monotonic(self) -> float:
        return self._get()

    def boottime(self) -> float:
        return self._get()

    def wall(self) -> float:
        return self._wall()
