"""Measure how a cost grows where a text gets twice as long, in CPU time of the thread."""

import time
from collections.abc import Callable
from contextlib import suppress

from gpushare.errors import GpuShareError

Run = Callable[[], object]
MOST_RATIO = 2.5
"""Linear work takes twice as long, quadratic work four times; the rest is left to the machine's noise."""
FLOOR = 0.001
"""Seconds beyond what a short text costs: less is not compared."""
SHORTEST = 500
LONGEST = 100_000
RUNS = 3
ATTEMPTS = 4


def seconds(run: Run) -> float:
    """Return the CPU seconds of one run; a refusal is an answer."""
    started = time.thread_time()
    with suppress(GpuShareError):
        run()
    return time.thread_time() - started


def too_steep(made: Callable[[int], Run]) -> bool:
    """Tell whether a cost grows faster than the length, each time that it is measured.

    Args:
        made: prepares what is measured, for a length.
    """
    length, floor = SHORTEST, FLOOR + 2 * seconds(made(2))
    while seconds(made(length)) < floor:
        if length >= LONGEST:
            return False
        length = min(length * 7, LONGEST)
    return all(_ratio(made(length), made(2 * length)) > MOST_RATIO for _ in range(ATTEMPTS))


def _ratio(short: Run, long: Run) -> float:
    return min(seconds(long) for _ in range(RUNS)) / min(seconds(short) for _ in range(RUNS))
