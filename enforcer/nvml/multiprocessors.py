"""How many multiprocessors (SMs) a GPU has, from what NVML says: the number of its cores. Pure."""

from typing import Final

CORES: Final = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""Cores of an SM by compute capability (CUDA C++ Programming Guide, "Compute Capabilities")."""
NEWER: Final = 128
"""Of an SM of any capability after these."""
MOST: Final = 1024
"""More SMs than this no GPU has: the answer is then not believed."""


def of_cores(cores: int, compute_capability: tuple[int, int]) -> int:
    """Return the number of SMs; 0 where the number of cores cannot be."""
    sms = cores // CORES.get(compute_capability, NEWER)
    return sms if 0 < sms <= MOST else 0
