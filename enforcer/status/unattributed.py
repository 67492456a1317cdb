"""Memory of a GPU that no process accounts for: its growth, and which containers ran kernels meanwhile. Pure.

Managed memory (``cudaMallocManaged``) is in the card's total and in no process's row. Who took it can only be inferred,
so this is a hint for people. Packages that decide about kills cannot import it: the layers of ``pyproject.toml`` and a
contract of its own forbid that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.quantity import format_mib

LEAST: Final = 5
"""Samples before anything is reported."""
MOST: Final = 12
"""Samples that are looked back upon."""
GROWN_MIB: Final = 256
"""Growth that is worth a word: contexts come and go with less."""
NAMED: Final = 8
"""So many containers are named in a sentence."""


@dataclass(frozen=True, slots=True)
class Sample:
    """MiB that no process accounts for, and who ran kernels since the sample before.

    ``ran``: container ids; ``None`` where that is not known of every process, as where the driver does not say, or
    names the MPS server for its clients.
    """

    mib: int
    ran: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """From how many MiB to how many, in how many samples.

    ``ran``: containers that ran kernels meanwhile, by id; ``None`` where that is not known. ``only``: the one of them,
    where it is the only one and ran some in every sample.
    """

    from_mib: int
    mib: int
    samples: int
    ran: tuple[str, ...] | None
    only: str | None


@dataclass(frozen=True, slots=True)
class Track:
    """One GPU's latest samples, and what was found of them."""

    recent: tuple[Sample, ...] = ()
    growth: Growth | None = None


def sampled(track: Track, sample: Sample) -> Track:
    """Take in a sample. A growth stays until its memory is free again, and is reported again if it grows further."""
    recent, before = (*track.recent, sample)[-MOST:], track.growth
    if before is not None and sample.mib <= before.from_mib + GROWN_MIB:
        before = None
    if before is not None and sample.mib <= before.mib:
        return Track(recent, before)
    return Track(recent, _joined(before, _found(recent)))


def matters(track: Track, mib: int) -> bool:
    """Say whether a sample of so much may be part of a growth: what is least, or less, begins one."""
    return any(sample.mib < mib for sample in track.recent)


def _found(recent: Sequence[Sample]) -> Growth | None:
    """Compare with the sample in which least was unaccounted for, the latest of those: from then on it grew."""
    least = min(sample.mib for sample in recent)
    start = max(at for at, sample in enumerate(recent) if sample.mib == least)
    since = recent[start + 1 :]
    if len(since) < LEAST or since[-1].mib <= least + GROWN_MIB:
        return None
    known = [sample.ran for sample in since if sample.ran is not None]
    ran = frozenset[str]().union(*known) if len(known) == len(since) else None
    only = next(iter(ran)) if ran is not None and len(ran) == 1 and all(known) else None
    named = None if ran is None else tuple(sorted(ran))
    return Growth(from_mib=least, mib=since[-1].mib, samples=len(since), ran=named, only=only)


def _joined(before: Growth | None, found: Growth | None) -> Growth | None:
    """Two that follow each other are one, of all who ran kernels in either."""
    if before is None or found is None:
        return before or found
    ran = None if before.ran is None or found.ran is None else tuple(sorted({*before.ran, *found.ran}))
    return Growth(
        from_mib=min(before.from_mib, found.from_mib), mib=found.mib, samples=max(before.samples, found.samples),
        ran=ran, only=found.only if before.only == found.only else None,
    )  # fmt: skip


def shown(growth: Growth, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what the node's status says of a growth.

    Args:
        growth: what was found.
        names: namespace/pod/container of the containers with a quota on the GPU, by container id.
    """
    ran = None if growth.ran is None else [names.get(each, "a container without a share") for each in growth.ran]
    only = names.get(growth.only or "")
    return {
        "fromMib": growth.from_mib, "mib": growth.mib, "samples": growth.samples, "ran": ran, "only": only,
        "sentence": _sentence(growth, ran, only),
    }  # fmt: skip


def _sentence(growth: Growth, ran: Sequence[str] | None, only: str | None) -> str:
    grown = format_mib(growth.mib - growth.from_mib)
    what = (
        f"{format_mib(growth.mib)} of the GPU memory in use belongs to no process that NVML lists, {grown} "
        f"more than {growth.samples} samples ago"
    )
    who = "the enforcer does not know which containers ran kernels meanwhile"
    if ran is not None:
        more = f" and {len(ran) - NAMED} more" if len(ran) > NAMED else ""
        who = f"containers that ran kernels meanwhile: {', '.join(ran[:NAMED]) or 'none'}{more}"
    if only is not None:
        who = f"only {only} ran kernels meanwhile, so the memory is likely its managed memory (cudaMallocManaged)"
    return f"{what}; {who}; the enforcer kills no container for this"
