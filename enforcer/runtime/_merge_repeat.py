"""Doing something again and again beside the loop, in a thread of its own."""

import threading
from collections.abc import Callable
from functools import partial

import structlog

from gpushare.reasons import Reason

log = structlog.get_logger()


def every(
    seconds: float,
    name: str,
    turn: Callable[[], None],
    stopped: threading.Event,
    woken: threading.Event | None = None,
) -> threading.Thread:
    """Do something now and then every so many seconds, in a thread that ends with the process.

    Args:
        seconds: between turns.
        name: of the thread.
        turn: what to do.
        stopped: set when there is to be no other turn.
        woken: set when the next turn is wanted at once.
    """
    thread = threading.Thread(target=partial(_repeat, seconds, turn, stopped, woken or stopped), name=name, daemon=True)
    thread.start()
    return thread


def _repeat(seconds: float, turn: Callable[[], None], stopped: threading.Event, woken: threading.Event) -> None:
    while not stopped.is_set():
        if woken is not stopped:
            woken.clear()
        try:
            turn()
        except Exception:  # a bug in one turn must not end all later ones unseen
            log.exception("a turn failed", reason=str(Reason.INTERNAL), thread=threading.current_thread().name)
        woken.wait(seconds)
