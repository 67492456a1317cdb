"""Delays new claims of a namespace of which several pods were killed on this node lately.

The first one waits 10 s, the next one 20 s more, and so on up to 300 s: one claim is prepared after each wait. Pods
that run keep their claims. The waits start again with the enforcer, and once the kills are ten minutes ago.
"""

import threading
from typing import Final

from enforcer.runtime.clock import CLOCK, Clock

FIRST: Final = 10.0
LONGEST: Final = 300.0
"""Seconds."""


class ClaimBackoff:
    """Says how long a new claim has to wait."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._exceeding, self._clock = frozenset[str](), clock
        self._lock = threading.Lock()
        self._waits: dict[str, tuple[float, float]] = {}
        """By namespace: until when the next claim waits, and for how many seconds in all."""

    def update(self, exceeding: frozenset[str]) -> None:
        """Take in the namespaces concerned; see ``enforcer.detection.fresh``."""
        self._exceeding = exceeding

    def admit(self, namespace: str) -> float:
        """Return the seconds that a new claim has to wait still; with 0 it is prepared, and the next one waits."""
        with self._lock:
            exceeding, now = self._exceeding, self._clock.monotonic()
            self._waits = {each: wait for each, wait in self._waits.items() if each in exceeding}
            if namespace not in exceeding:
                return 0.0
            until, seconds = self._waits.setdefault(namespace, (now + FIRST, FIRST))
            if now < until:
                return until - now
            longer = min(LONGEST, 2 * seconds)
            self._waits[namespace] = now + longer, longer
            return 0.0
