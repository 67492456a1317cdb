"""Allocations of which the scheduler never learned that they were stored, read from its own log.

It writes an allocation and waits for the answer. Where that is lost, as when the API server is killed, the scheduler
takes what may have been stored for failed, and gives the same room to another pod until its watch has caught up
(Kubernetes 1.37, plugin ``DynamicResources``: ``bindClaim`` fails, ``Unreserve`` forgets). No admission sees this; a
node's enforcer refuses the claim that comes second where its memory does not fit.

So what was promised beyond what a device has is the scheduler's doing where it came within moments, and fits without
those claims.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.contract import DRIVER
from tests.integration.controlplane.checker import audit
from tests.load.scale.ledger import Shortfall, named

Object = dict[str, Any]
WRITE: Final = re.compile(r'err="add allocation and reservation to claim (?P<claim>[^\s:]+): (?P<why>.*?)" pod=')
LOST: Final = re.compile(
    r"EOF|connection reset|broken pipe|connection lost|GOAWAY|deadline exceeded|awaiting headers|request timed out"
)
ANSWERED: Final = re.compile(r"dial tcp|TLS handshake|rate limiter|webhook|Internal error|is forbidden|is invalid")
"""Then nothing was stored after all, and the scheduler knows."""
MOMENTS: Final = 60.0
"""Seconds between the first and the second that was given the same room: until the scheduler's watch has caught up."""
OVER: Final = re.compile(r"(?P<device>[^\s/]+/[^\s/]+/[^\s/:]+): \S+ (?P<capacity>\S+) promised of ")
"""Of an auditor's sentences, those about a device of which more was given away than it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Problems by whose doing they are: what was given ``twice`` after an answer was lost, and ``others``.

    ``lost`` are the claims (``namespace/name``) of those answers.
    """

    lost: frozenset[str]
    twice: tuple[str, ...]
    others: tuple[str, ...]


def unanswered(log: str) -> frozenset[str]:
    """Claims (``namespace/name``) of which the write of an allocation was never answered."""
    found = [each for each in WRITE.finditer(log) if LOST.search(each["why"]) and not ANSWERED.search(each["why"])]
    return frozenset(each["claim"] for each in found)


def sort(slices: Sequence[Object], claims: Sequence[Object], shortfalls: Iterable[Shortfall], log: str) -> Sorted:
    """Sort what is wrong with all claims as they are now, and what a ledger saw on the way there.

    Args:
        slices: what is offered.
        claims: those to be judged.
        shortfalls: the ledger's.
        log: the scheduler's.
    """
    lost = unanswered(log)
    told = [(each.said, each.comes_of(lost, MOMENTS), each.device) for each in shortfalls]
    devices = {device for _, excused, device in told if excused}
    left = audit(slices, [each for each in claims if named(each) not in lost], DRIVER).problems
    still = {_over(each) for each in left}
    verdicts = [(said, excused) for said, excused, _ in told]
    for problem in audit(slices, claims, DRIVER).problems:
        over = _over(problem)
        verdicts.append((problem, over is not None and over not in still and over[0] in devices))
    return Sorted(
        lost=lost,
        twice=tuple(problem for problem, excused in verdicts if excused),
        others=tuple(problem for problem, excused in verdicts if not excused),
    )


def _over(problem: str) -> tuple[str, str] | None:
    found = OVER.match(problem)
    return (found["device"], found["capacity"]) if found else None
