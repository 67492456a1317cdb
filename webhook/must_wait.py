"""How the event loop learns that a review has to wait for the API server. Code that waits calls ``in_thread`` first."""

import threading


class MustWait(Exception):
    """The answer needs a wait, and the calling thread must not wait. The worker repeats the review in another one."""


def in_thread() -> bool:
    """Return whether the calling thread may wait: any but the main one, which serves every connection."""
    return threading.current_thread() is not threading.main_thread()
