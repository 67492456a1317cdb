"""How long a test waits before it gives up: longer where workers of tests share a machine's processors.

What is waited for is stretched by it; what is asserted of the product never is. ``GPU_SHARE_PATIENCE`` says the factor,
1 unless set.
"""

import os
import re
import time
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "GPU_SHARE_PATIENCE"
FACTOR: Final = float(os.environ.get(VARIABLE, "1"))
OPTION: Final = re.compile(r"--timeout=(\d{1,4})([sm])\b")


def patient(seconds: float) -> float:
    """So long is waited here for what takes at most ``seconds`` elsewhere."""
    return seconds * FACTOR


def stretched(command: str, factor: float = FACTOR) -> str:
    """Give a command's own ``--timeout`` options that patience."""
    return OPTION.sub(lambda found: f"--timeout={int(found[1]) * factor:.0f}{found[2]}", command)


def holds_within(check: Callable[[], object], seconds: float, pause: float = 0.1) -> bool:
    """Poll until it holds; false at the end of patience.

    What is dear to ask is asked more rarely: what is waited for needs the processor more than the question.
    """
    deadline = time.monotonic() + patient(seconds)
    while True:
        began = time.monotonic()
        if check():
            return True
        asked = time.monotonic()
        if asked > deadline:
            return False
        time.sleep(max(pause, 2 * (asked - began)))
