"""The machine's clocks, for the parts whose tests pass time themselves."""

import time
from typing import Final


class Clock:
    """Reads the clocks, in seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back. They stand still while the machine sleeps."""
        return time.monotonic()

    def boottime(self) -> float:
        """Seconds since this boot, suspends included, so that a restart can go on counting."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        """Seconds since 1970, as container statuses and NVML have them. They may jump."""
        return time.time()


CLOCK: Final = Clock()
