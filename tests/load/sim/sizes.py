"""What pods ask for, when they come and how long they stay. Plain data; memory in MiB, compute in percent, seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

GIB: Final = 1024
NEVER: Final = math.inf


class Part(NamedTuple):
    """One request of a claim, which is one container and one client of MPS."""

    memory: int
    compute: int = 0


class Size(NamedTuple):
    """A claim: its sums, and its ``parts`` where they may lie on different GPUs of a node (else all lie on one)."""

    memory: int
    compute: int = 0
    clients: int = 1
    parts: tuple[Part, ...] = ()


class Pod(NamedTuple):
    """One pod of a trace; ``lives`` counts from when it is placed."""

    number: int
    size: Size
    arrives: float = 0.0
    lives: float = NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What one GPU offers to shares."""

    memory: int = 80 * GIB
    compute: int = 100
    clients: int = 48


def together(*parts: Part) -> Size:
    """Make a claim whose requests all lie on one GPU, as the webhook writes it by default."""
    return Size(sum(each.memory for each in parts), sum(each.compute for each in parts), len(parts))


def apart(*parts: Part) -> Size:
    """Make a claim whose requests may lie on different GPUs of a node (``same-gpu`` is "false")."""
    return together(*parts)._replace(parts=parts)


def total(pods: Sequence[Pod]) -> int:
    """MiB that all these ask for."""
    return sum(each.size.memory for each in pods)
