"""Which templates may be written now: one call for each, again after a pause, none while nobody answers. Pure.

Time is passed in, in seconds on a clock that does not jump. What is no longer wanted is forgotten at once, so
that there is never more here than is wanted now.
"""

from collections import OrderedDict
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Final

from webhook.claim_templates.references import Key

RETRY_SECONDS: Final = 1.0
"""What the watch does not confirm by then, or was refused, is tried again, then with ever longer pauses."""
MAX_RETRY_SECONDS: Final = 30.0
PROBE_SECONDS: Final = 0.5
"""While the API server fails, one write is tried so often, whose success lets all the others go."""
AT_ONCE: Final = 32
"""Writes given out and not done: a few for each thread that writes, as what is given out can be wrong by its turn."""


class Outcome(Enum):
    """What became of a write."""

    ANSWERED = auto()
    """Done, or refused for reasons of its own."""
    UNAVAILABLE = auto()
    """The API server did not answer, or could not."""
    NOT_TRIED = auto()
    """There was nothing to do any more."""


class WriteQueue:
    """The templates that have to be written in one way: created, or deleted."""

    def __init__(self) -> None:
        # A plain dict gets slow where its first entry is taken again and again.
        self._first, self._again = OrderedDict[Key, None](), OrderedDict[Key, None]()
        self._busy: dict[Key, bool] = {}
        """Keys in work; true where the key was added again meanwhile."""
        self._pauses: dict[Key, float] = {}
        self._at: dict[Key, float] = {}
        self._later: list[tuple[float, Key]] = []
        self._wanted: set[Key] = set()
        self._probe: float | None = None
        """When the next write may be tried, while the API server fails."""

    def __len__(self) -> int:
        return len(self._wanted)

    def add(self, key: Key) -> None:
        """Have it written; wanting it twice is wanting it once."""
        if key in self._wanted:
            return
        self._wanted.add(key)
        if key in self._busy:
            self._busy[key] = True
        else:
            self._first[key] = None

    def discard(self, key: Key) -> None:
        """It need not be written any more; what is known of it is forgotten."""
        self._wanted.discard(key)
        self._first.pop(key, None)
        self._again.pop(key, None)
        self._pauses.pop(key, None)
        self._at.pop(key, None)

    def get(self, now: float) -> list[Key]:
        """Return the keys that may be written now; call ``done`` for each."""
        self._wake(now)
        room = AT_ONCE - len(self._busy)
        if self._probe is not None:
            if now < self._probe:
                return []
            room = min(room, 1)
        taken = [self._pop() for _ in range(min(room, len(self._first) + len(self._again)))]
        self._busy |= dict.fromkeys(taken, False)
        if self._probe is not None and taken:
            self._probe = now + PROBE_SECONDS
        return taken

    def done(self, key: Key, now: float, outcome: Outcome) -> None:
        """Say what became of a write. It is wanted until it is dropped, and tried again until then."""
        again = self._busy.pop(key)
        if outcome is Outcome.UNAVAILABLE:
            self._probe = now + PROBE_SECONDS if self._probe is None else self._probe
        elif outcome is Outcome.ANSWERED:
            self._probe = None
        if key not in self._wanted:
            return
        if again or outcome is Outcome.NOT_TRIED:
            self._first[key] = None
        elif outcome is Outcome.UNAVAILABLE:
            self._again[key] = None
        else:
            self._pause(key, now)

    def next(self, now: float) -> float:
        """Seconds until there may be something to take; infinite where only a change or an answer brings it."""
        if len(self._busy) >= AT_ONCE:
            return float("inf")
        at = self._later[0][0] if self._later else float("inf")
        if self._first or self._again:
            at = now
        return max(0.0, at - now, (self._probe or now) - now)

    def _pop(self) -> Key:
        """Those never tried come first: they must not stand behind many that fail each time."""
        return (self._first or self._again).popitem(last=False)[0]

    def _pause(self, key: Key, now: float) -> None:
        pause = self._pauses.get(key, RETRY_SECONDS)
        self._pauses[key] = min(pause * 2, MAX_RETRY_SECONDS)
        self._at[key] = now + pause
        heappush(self._later, (now + pause, key))

    def _wake(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            at, key = heappop(self._later)
            if self._at.get(key) == at:  # else it was dropped meanwhile
                del self._at[key]
                self._again[key] = None
