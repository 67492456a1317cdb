"""What a program may ask CUDA for: its limit less a reserve, in MiB and as fractions of what CUDA reports. Pure.

The reserve is for what the memory budget of a framework leaves out: CUDA context, workspaces of libraries, CUDA graphs.
What a context takes depends on the card and the compute limit: ``gpushare.cuda_context``.
"""

from dataclasses import dataclass
from typing import Final

from gpushare import defaults
from gpushare.cuda_context import WORKSPACE_MIB
from gpushare.errors import QuantityError
from gpushare.quantity import parse_memory, parse_percent

MILLION: Final = 1_000_000
HUNDRED: Final = 100
EARLIER_MIB: Final = 512
"""The reserve of enforcers that did not know the GPU's multiprocessors. Claims that they prepared keep it."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """What the operator chose: ``mib``, or ``percent`` of the limit where that is more.

    ``mib`` is ``None`` where nothing was chosen: the reserve is then the context and its workspaces, or 4 % of the
    limit where that is more.
    """

    mib: int | None = None
    percent: int = defaults.RESERVE_PERCENT

    def of(self, limit_mib: int, context_mib: int | None) -> int:
        """Return the MiB that a limit keeps in reserve; a part of a MiB counts as one.

        Chosen by the operator it is at most half of the limit, else at most the context and half of the rest.

        Args:
            limit_mib: of a container.
            context_mib: what a CUDA context takes of it; ``None``: not known.
        """
        part = -(-limit_mib * self.percent // HUNDRED)
        if self.mib is None and context_mib is not None:
            most = min(limit_mib, context_mib + max(0, limit_mib - context_mib) // 2)
            return min(max(context_mib + WORKSPACE_MIB, part), most)
        chosen = EARLIER_MIB if self.mib is None else self.mib
        return min(max(chosen, part), limit_mib // 2)


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


def budget(
    limit_mib: int, total_mib: int, reserve: Reserve, *, context_mib: int | None, watch_only: bool = False
) -> Budget:
    """Work out what a container may ask for.

    Args:
        limit_mib: its limit.
        total_mib: what CUDA reports as the memory of its GPU; of several, the most.
        reserve: what its limit keeps in reserve.
        context_mib: what a CUDA context takes of it; of several GPUs, the most; ``None``: not known.
        watch_only: see ``Budget``.
    """
    usable = limit_mib - reserve.of(limit_mib, context_mib)
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
