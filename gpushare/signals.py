"""Being asked to stop: SIGTERM and SIGINT as an event that every thread can wait for."""

import signal
import threading
from queue import SimpleQueue
from typing import Final

ASKING: Final = (signal.SIGTERM, signal.SIGINT)


def stopped_by_signal(event: threading.Event | None = None) -> threading.Event:
    """Take over SIGTERM and SIGINT: the first of either sets the event, which is returned. For the main thread alone.

    The handler hands over to a thread: it runs wherever the main thread happens to be, also inside ``Event.wait`` with
    the event's lock held, where ``Event.set`` would wait for itself for ever. ``SimpleQueue.put`` may be interrupted
    by itself.

    Args:
        event: set where given, else one is made.
    """
    asked, stopped = SimpleQueue[int](), event or threading.Event()
    for number in ASKING:
        signal.signal(number, lambda found, _: asked.put(found))

    def wait() -> None:
        asked.get()
        stopped.set()

    threading.Thread(target=wait, name="stopping", daemon=True).start()
    return stopped
