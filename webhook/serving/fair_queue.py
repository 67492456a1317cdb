"""Whose review comes next, where several wait: each sender gets the same share, counted in bytes. Pure.

A sender is a namespace: its users do not count, for a tenant acts there as any number of ServiceAccounts. The cost of a
review is bounded by its size, so bytes stand for the time it takes. However many reviews a sender has sent, and however
large they are, that of another waits for the one under way alone, and behind those of its own.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

LEAST_BYTES: Final = 4 * 1024
"""What the smallest request counts as."""
MOST_SENDERS: Final = 2000
"""Twice as many as there may be connections. Of more, it is forgotten what they had."""
LONGEST_NAME: Final = 63
_KEY: Final = b'"namespace":"'
"""As the API server writes it: before the objects, and after a name in which it escapes quotes."""
_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """What waits; false where nothing does. Start-time fair queueing: the clock is the start of what was taken last."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, _T]] = []
        """A heap: start, number, item."""
        self._ends: dict[bytes, int] = {}
        """When a sender's last one ends, if everybody who waits gets one byte in each moment."""
        self._clock, self._numbers = 0, count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, sender: bytes, size: int, item: _T) -> None:
        """Put it behind all others of its sender, and before what others have sent beyond their share."""
        if len(self._ends) >= MOST_SENDERS:
            self._ends.clear()
        start = max(self._clock, self._ends.get(sender, 0))
        self._ends[sender] = start + max(size, LEAST_BYTES)
        heappush(self._waiting, (start, next(self._numbers), item))

    def take(self) -> _T:
        """Take what comes next; there has to be something."""
        self._clock, _, item = heappop(self._waiting)
        return item

    def discard(self, item: _T) -> None:
        """Take out an item that has gone, if it waits."""
        self._waiting = [each for each in self._waiting if each[2] is not item]
        heapify(self._waiting)


def sender_of(body: bytes | bytearray) -> bytes:
    """Return the namespace that a review is for; empty where it does not say as the API server does."""
    start = body.find(_KEY) + len(_KEY)
    end = body.find(b'"', start, start + LONGEST_NAME + 1)
    return bytes(body[start:end]) if end > start >= len(_KEY) else b""
