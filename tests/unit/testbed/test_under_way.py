import sys
import time
from pathlib import Path
from typing import Any

from tests.testbed.parallel.running import Running
from tests.testbed.parallel.workers import Session


def test_a_worker_that_ends_right_after_its_last_result_is_still_asked_for_it(tmp_path: Path) -> None:
    running = Running([], tmp_path, 1.0)

    class Ending:
        """It puts its result between being asked whether it lives and saying no."""

        def is_alive(self) -> bool:
            running.results.put(None)
            return False

    worker: Any = Ending()
    running._threads.append(worker)
    assert running.under_way


def test_the_longest_worker_starts_ahead_of_the_others_and_none_waits_once_asked_to_stop(tmp_path: Path) -> None:
    short, long = Session(name="short", files=("a",)), Session(name="long", files=("b", "c"))
    running = Running([(short,), (long,)], tmp_path, 1.0, (sys.executable, "-c", ""), head_start=60.0)
    began = time.monotonic()
    running.start(running.workers)
    first = running.next(30.0)
    assert first is not None
    assert first.session is long
    running.stop()
    running.end()
    assert time.monotonic() - began < 60.0
    assert not running.log("short").exists()
