"""What a program may ask CUDA for: its limit less a reserve, in MiB and as fractions of what CUDA reports. Pure.

The reserve is for what the memory budget of a framework leaves out: CUDA context, workspaces of libraries, CUDA graphs.
"""

from dataclasses import dataclass
from typing import Final

from gpushare import defaults
from gpushare.errors import QuantityError
from gpushare.quantity import parse_memory, parse_percent

MILLION: Final = 1_000_000
HUNDRED: Final = 100


@dataclass(frozen=True, slots=True)
class Reserve:
    """``mib``, or ``percent`` of the limit where that is more; never more than half of the limit.

    512 MiB is the most that NVIDIA measured a CUDA context to take of a limit (256 to 512 MiB). By the rule of the
    half, the default is whole for limits of 1 GiB and more.
    """

    mib: int = defaults.RESERVE_MIB
    percent: int = defaults.RESERVE_PERCENT

    def of(self, limit_mib: int) -> int:
        """Return the MiB that a limit keeps in reserve; a part of a MiB counts as one."""
        return min(max(self.mib, -(-limit_mib * self.percent // HUNDRED)), limit_mib // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the programs of a container may ask for on each of its GPUs.

    ``total_mib`` is what CUDA reports as the GPU's memory. ``watch_only``: nothing refuses an allocation beyond the
    limit, and CUDA reports the free memory of the whole GPU as free.
    """

    limit_mib: int
    usable_mib: int
    total_mib: int
    watch_only: bool = False

    @property
    def of_total(self) -> str:
        """The usable memory as a fraction of the total."""
        return fraction(self.usable_mib, self.total_mib)

    @property
    def of_free(self) -> str:
        """The usable memory as a fraction of what CUDA reports as free at most when a program starts."""
        return self.of_total if self.watch_only else fraction(self.usable_mib, self.limit_mib)


def budget(limit_mib: int, total_mib: int, reserve: Reserve, *, watch_only: bool = False) -> Budget:
    """Work out what a container may ask for.

    Args:
        limit_mib: its limit.
        total_mib: what CUDA reports as the memory of its GPU; of several, the most.
        reserve: what its limit keeps in reserve.
        watch_only: see ``Budget``.
    """
    usable = limit_mib - reserve.of(limit_mib)
    return Budget(limit_mib=limit_mib, usable_mib=usable, total_mib=total_mib, watch_only=watch_only)


def fraction(mib: int, of_mib: int) -> str:
    """Write a part of a memory with six decimals, rounded down; never more than all of it."""
    millionths = min(MILLION, mib * MILLION // of_mib) if of_mib else 0
    return f"{millionths // MILLION}.{millionths % MILLION:06}"


def parse_reserve(value: object) -> Reserve:
    """Read an amount such as ``1Gi``, a percentage such as ``6%``, or an empty text for the default.

    Raises:
        QuantityError: neither an amount nor a percentage.
    """
    if value == "":
        return Reserve()
    if not isinstance(value, str):
        raise QuantityError('must be a string such as "1Gi" or "6%"')
    return Reserve(0, parse_percent(value)) if value.endswith("%") else Reserve(parse_memory(value), 0)
