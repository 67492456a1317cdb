"""How much of the audit log is kept. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

DAY: Final = 86400.0
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment that nothing is added to any more: its size in bytes, and seconds since it was written to."""

    size: int
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of the segments before the present one; 0 sets no limit. The last of them always stays."""

    segments: int = 0
    mib: int = 256
    days: int = 0

    def expired(self, kept: Sequence[SegmentInfo]) -> int:
        """How many are to be removed, from the first on.

        Too many, or too much, goes at once. For its age alone one goes at a time: a clock that was set to another
        year must not empty the log.
        """
        if len(kept) <= 1:
            return 0
        spare = len(kept) - 1
        count = min(spare, max(0, len(kept) - self.segments)) if self.segments else 0
        size = sum(each.size for each in kept[count:])
        while self.mib and count < spare and size > self.mib * MIB:
            size -= kept[count].size
            count += 1
        return count or int(bool(self.days) and kept[0].age > self.days * DAY)
