"""SIGTERM as an event: also where it comes while the event's own lock is held."""

import signal
import subprocess
import sys
import threading

import pytest

from gpushare.signals import StopEvent

WAITS = """
import signal
from gpushare.signals import stopped_by_signal
event = stopped_by_signal()
with event._cond:  # as Event.wait has it, for an instant at each call
    signal.raise_signal({number})
assert event.wait(20)
print("stopped")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_never_waits_for_the_lock_of_the_event_it_sets(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITS.format(number=int(number))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("stopped\n", 0), done.stderr


def test_all_threads_that_wait_are_woken_and_it_stays_set() -> None:
    event, woken = StopEvent(), threading.Semaphore(0)
    assert not event.wait(0.01)
    assert not event.is_set()

    def wait() -> None:
        if event.wait(60):
            woken.release()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    event.set()
    event.set()
    assert all(woken.acquire(timeout=20) for _ in threads)
    assert event.wait(0)
    assert event.is_set()
