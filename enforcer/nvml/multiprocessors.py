"""How many multiprocessors (SMs) a GPU has, from the number of its cores that NVML says. Pure."""

from typing import Final

CORES: Final = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""Cores of an SM by compute capability (CUDA C++ Programming Guide, "Compute Capabilities")."""
NEWER: Final = 128
"""Of an SM of any capability after these."""
MOST: Final = 1024
"""More SMs than this no GPU has: the answer is then not believed."""


def of_cores(cores: int, compute_capability: tuple[int, int]) -> int:
    """Return the number of SMs; 0 where the number of cores cannot be."""
    return possible(cores // CORES.get(compute_capability, NEWER))


def possible(sms: int) -> int:
    """Return a number of SMs; 0 where it cannot be."""
    return sms if 0 < sms <= MOST else 0
