"""Being asked to stop: SIGTERM and SIGINT as an event that every thread can wait for."""

import signal
import threading
from queue import Empty, SimpleQueue
from typing import Final

ASKING: Final = (signal.SIGTERM, signal.SIGINT)


class StopEvent(threading.Event):
    """An event that a signal handler may set, and that stays set.

    The handler runs wherever the main thread happens to be, also inside ``Event.wait`` while it owns the event's lock.
    ``Event.set`` would wait there for itself for ever. ``SimpleQueue.put`` may be interrupted by itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked, self._queue = False, SimpleQueue[None]()

    def set(self) -> None:
        """Set it."""
        self._asked = True
        self._queue.put(None)

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._asked

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, ``timeout`` seconds at most, and return whether it is."""
        try:
            self._queue.get(timeout=timeout)
        except Empty:
            return self._asked
        self._queue.put(None)  # for the next thread that waits
        return True


def stopped_by_signal(event: StopEvent | None = None) -> StopEvent:
    """Take over SIGTERM and SIGINT: the first of either sets the event, which is returned. For the main thread alone.

    Args:
        event: set where given, else one is made.
    """
    stopped = event or StopEvent()
    for number in ASKING:
        signal.signal(number, lambda _, __: stopped.set())
    return stopped
