"""SIGTERM as an event: also where it comes while the event's own lock is held."""

import signal
import subprocess
import sys

import pytest

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
