from pathlib import Path
from typing import Any

from tests.e2e.running import Running


def test_a_lane_that_ends_right_after_its_last_result_is_still_asked_for_it(tmp_path: Path) -> None:
    running = Running([], tmp_path, 1.0)

    class Ending:
        """It puts its result between being asked whether it lives and saying no."""

        def is_alive(self) -> bool:
            running.results.put(None)
            return False

    lane: Any = Ending()
    running._threads.append(lane)
    assert running.under_way
