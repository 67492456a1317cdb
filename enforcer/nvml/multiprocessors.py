"""How many multiprocessors (SMs) a GPU has, from the number of its cores that NVML says. Pure."""

from typing import Final

CORES: Final = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""Cores of an SM by compute capability (CUDA C++ Programming Guide, "Compute Capabilities")."""
OTHERS: Final = 128
"""Of an SM of any other capability."""
MOST: Final = 1024
"""More SMs than this no GPU has: the answer is then not believed."""
LARGEST: Final = {
    (7, 0): 80, (7, 5): 72, (8, 0): 108, (8, 6): 84, (8, 9): 142, (9, 0): 132, (10, 0): 148, (10, 3): 160, (12, 0): 188,
}  # fmt: skip
"""SMs of the largest card of a compute capability, from NVIDIA's data sheets: V100, Quadro RTX 8000, A100, A40, L40S,
H100, B200, B300, RTX PRO 6000 Blackwell."""


def of_cores(cores: int, compute_capability: tuple[int, int]) -> int:
    """Return the number of SMs; 0 where the number of cores cannot be."""
    return possible(cores // CORES.get(compute_capability, OTHERS))


def most(compute_capability: tuple[int, int]) -> int:
    """Return the SMs that a GPU has at most, where NVML does not say how many it has."""
    return LARGEST.get(compute_capability, max(LARGEST.values()))


def possible(sms: int) -> int:
    """Return a number of SMs; 0 where it cannot be."""
    return sms if 0 < sms <= MOST else 0
