"""Allocations of which the scheduler never learned that they were stored, read from its own log.

It writes an allocation and waits for the answer. Where the API server is killed in between, the scheduler takes what
may have been stored for failed, and gives the same room to another pod until its watch has caught up (Kubernetes 1.37,
plugin ``DynamicResources``: ``bindClaim`` fails, ``Unreserve`` forgets). No admission sees this; a node's agent refuses
the claim that comes second.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

WRITE: Final = re.compile(r'err="add allocation and reservation to claim (?P<claim>[^\s:]+): (?P<why>.*?)" pod=')
ANSWERED: Final = re.compile(r"connection refused|is forbidden|not found|is invalid|has been modified|in the meantime")
"""Then nothing was stored, and the scheduler knows."""
TOO_MUCH: Final = re.compile(r"(?P<device>[^\s/]+/[^\s/]+/[^\s/:]+)(: \S+ \S+ promised of | had not )")
"""Of an auditor's and a ledger's sentences, those about a device of which more was given away than it has."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Problems by whose doing they are: of devices given ``twice`` after an answer was lost, and ``others``."""

    twice: tuple[str, ...]
    others: tuple[str, ...]


def unanswered(log: str) -> set[str]:
    """Claims (``namespace/name``) of which the write of an allocation was never answered."""
    return {found["claim"] for found in WRITE.finditer(log) if not ANSWERED.search(found["why"])}


def sort(problems: Iterable[str], given: Mapping[str, Collection[str]], log: str) -> Sorted:
    """Sort what an auditor and a ledger complained of.

    Args:
        problems: their sentences, which name a device as ``driver/pool/name``.
        given: devices, so named, by the claim (``namespace/name``) that had them at any time.
        log: the scheduler's.
    """
    devices = {device for claim in unanswered(log) for device in given.get(claim, ())}
    every = tuple(problems)
    twice = {each for each in every if (found := TOO_MUCH.search(each)) and found["device"] in devices}
    return Sorted(tuple(each for each in every if each in twice), tuple(each for each in every if each not in twice))
