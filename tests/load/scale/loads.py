"""What the pods of a run ask for: drawn from a seed, and such that one can say beforehand what has to be placed."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

STEP_MIB: Final = 256
SMALLEST_MIB, LARGEST_MIB = 512, 5632
COMPUTE: Final = (0, 0, 0, 5, 10, 20)
"""Percent; half of the pods ask for none."""
WHOLE: Final = 100


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A share: MiB of memory, percent of compute (0: none asked for)."""

    memory_mib: int
    compute: int = 0

    @property
    def label(self) -> str:
        """For names of Kubernetes objects."""
        return f"{self.memory_mib}-{self.compute}"


def mixed(seed: int, count: int) -> list[Size]:
    """So many sizes between a half and 5.5 GiB, every multiple of 256 MiB alike."""
    chance = random.Random(seed)
    steps = range(SMALLEST_MIB, LARGEST_MIB + 1, STEP_MIB)
    return [Size(chance.choice(steps), chance.choice(COMPUTE)) for _ in range(count)]


def must_all_fit(sizes: Iterable[Size], gpus: int, memory_mib: int) -> bool:
    """Whether any scheduler that never leaves a pod waiting beside room for it places them all, in any order.

    A GPU that turns the largest away holds more than ``memory_mib`` less that, or the same in compute. If the pods
    together cannot do so to every GPU, then there is one for each of them. False means that nothing is known.
    """
    everything = list(sizes)
    memory = sum(each.memory_mib for each in everything)
    compute = sum(each.compute for each in everything)
    spare = memory_mib - max(each.memory_mib for each in everything)
    spare_compute = WHOLE - max(each.compute for each in everything)
    if spare < 0:
        return False
    return memory // (spare + 1) + compute // (spare_compute + 1) < gpus


def asks_too_much(sizes: Sequence[Size], gpus: int, memory_mib: int) -> bool:
    """Whether they cannot all be placed, whoever places them."""
    return sum(each.memory_mib for each in sizes) > gpus * memory_mib
