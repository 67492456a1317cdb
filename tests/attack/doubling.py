"""Measure how a cost grows where a text gets twice as long, in CPU time of the thread."""

import time
from collections.abc import Callable
from contextlib import suppress

from gpushare.errors import GpuShareError

Run = Callable[[], object]
MOST_RATIO = 2.5
"""Linear work takes twice as long, quadratic work four times; the rest is left to the machine's noise."""
DOUBLINGS = 2
"""Between the two lengths that are compared: the farther they are apart, the less does noise decide."""
FLOOR = 0.001
"""Seconds beyond what a short text costs: less is not compared."""
SHORTEST = 500
LONGEST = 25_000
"""Quadratic work takes a tenth of a second and more here. At four times of it the allocator begins to ask for pages."""
RUNS = 3
ATTEMPTS = 3


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
        length = min(length * 3, LONGEST)
    short, long = made(length), made(length * 2**DOUBLINGS)
    return all(_ratio(short, long) > MOST_RATIO**DOUBLINGS for _ in range(ATTEMPTS))


def _ratio(short: Run, long: Run) -> float:
    """Compare the fastest of runs that took turns: a slow spell of the machine meets both."""
    took = [(seconds(long), seconds(short)) for _ in range(RUNS)]
    return min(each for each, _ in took) / min(each for _, each in took)
