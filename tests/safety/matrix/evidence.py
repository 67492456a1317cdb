"""What was seen of one run. Plain data, so that the checker can be shown runs that never were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.safety.matrix.trace import Event


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """``files`` are the audit log's; ``harmed`` whom the kernel says a signal was sent to, or who is dead.

    ``late``: what had to happen did not; ``hung``: the enforcer did not stop when told to.
    """

    case: Any
    events: Sequence[Event]
    files: Mapping[str, bytes]
    harmed: Sequence[int]
    late: bool
    hung: bool
    struck: float
    lifted: float
    grace: float
    ceiling: int
    holders_only: bool
    seconds: float
    log: Sequence[str]
