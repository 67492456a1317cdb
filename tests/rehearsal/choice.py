"""Which step comes when: chosen by the seed alone, so that any one can be repeated by its number. Pure."""

from collections.abc import Sequence
from random import Random


def order(names: Sequence[str], seed: int, count: int) -> list[str]:
    """Return the names of ``count`` steps: all of them in some order, then all again in another, and so on.

    Whatever the count, no step comes twice more often than another.
    """
    chosen: list[str] = []
    for turn in range(-(-count // len(names)) if names else 0):
        chosen += Random(f"{seed}/{turn}").sample(sorted(names), len(names))
    return chosen[:count]


def randomness(seed: int, number: int) -> Random:
    """Return what step ``number`` decides by."""
    return Random(f"{seed}/step/{number}")


def repeat(seed: int, number: int, name: str) -> str:
    """Return the command that repeats one step alone, also once there are other steps."""
    return f"python -m tests.rehearsal --seed {seed} --only {number} --steps {name}"
