"""GPU memory in use that nobody is counted for, of one GPU, sample by sample. Pure.

What the device uses is the sum of NVML's rows, what the driver needs itself, and the rest: managed memory
(``cudaMallocManaged``), memory that only file descriptors hold, memory listed under a pid that has ended. NVML writes
both numbers. A tenant chooses how much it takes that stands in no row, and no more: it writes neither number.

For a moment everybody's memory is in no row: rows come late, contexts end. On an H100 (driver 580.159.04) the gap of
eight processes was up to 1,071 MiB for at most 0.19 s, and below 64 MiB else. So it has to stand for two samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.quota.types import Quota

TOLERANCE_MIB: Final = 512
"""Up to this nothing follows: 48 processes leave a gap of up to 6 MiB each."""
STANDS_SECONDS: Final = 0.2
"""For so long memory has to be unaccounted for, in two samples at least."""
MOST_KNOWN_MIB: Final = 512
"""More is not the driver's own, also where no share is on the GPU: nothing is learned then."""
MOST_PIDS: Final = 64
"""Processes outside shares that are remembered."""
Member = tuple[str, str, str]
"""A container: UID of its pod, name, and container id, empty until the enforcer knows it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and how many descriptors it has beyond the one of a user of CUDA or NVML."""

    identity: Identity
    descriptors: int


@dataclass(frozen=True, slots=True)
class Holders:
    """All processes of the node with such descriptors; ``complete``: those of all pods could be read."""

    found: tuple[Holder, ...] = ()
    complete: bool = True


UNKNOWN: Final = Holders(complete=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """Who may have taken memory of a GPU in some samples.

    ``members`` are containers with a share, ``pids`` processes outside of shares that NVML lists, MPS servers among
    them. ``unknown``: not every sample could be read, or there are more.
    """

    members: frozenset[Member] = frozenset()
    pids: frozenset[int] = frozenset()
    unknown: bool = False

    def joined(self, other: "Presence") -> "Presence":
        """Return who is in either. A container whose id was not known before is the one that has it now."""
        ids = {(pod, name): member for member in other.members for pod, name, known in [member] if known}
        mine = {ids.get((pod, name), (pod, name, known)) if not known else (pod, name, known)
                for pod, name, known in self.members}  # fmt: skip
        pids = self.pids | other.pids
        return Presence(
            members=frozenset(mine) | other.members, pids=frozenset(sorted(pids)[:MOST_PIDS]),
            unknown=self.unknown or other.unknown or len(pids) > MOST_PIDS,
        )  # fmt: skip


class Seen(NamedTuple):
    """One sample: when it was taken, MiB in use beyond the rows, and who was there."""

    at: float
    gap_mib: int
    who: Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is known of one GPU's unaccounted memory; all in MiB.

    ``known_mib`` is what the device used beyond the rows when no share was on it. ``seen`` are the latest samples,
    ``level_mib`` the least of their gaps, ``base_mib`` that when nothing was unaccounted for last. ``present``: who was
    there since then. ``since``: when that began, on the loop's clock.
    """

    known_mib: int = 0
    seen: tuple[Seen, ...] = ()
    level_mib: int = 0
    base_mib: int = 0
    present: Presence = field(default_factory=lambda: Presence(unknown=True))
    since: float | None = None

    @property
    def mib(self) -> int:
        """MiB that nobody is counted for."""
        return max(0, self.level_mib - self.known_mib)

    @property
    def matters(self) -> bool:
        """Whether that is more than the tolerance."""
        return self.mib > TOLERANCE_MIB

    @property
    def grown_mib(self) -> int:
        """MiB that came since ``present`` is known; 0 within the tolerance."""
        return max(0, self.level_mib - max(self.base_mib, self.known_mib)) if self.matters else 0


def update(before: Account, view: GpuSnapshot, quotas: Sequence[Quota], now: float) -> Account:
    """Take in one sample.

    Args:
        before: what was known.
        view: the GPU.
        quotas: the containers with a quota on it.
        now: seconds on the loop's clock.
    """
    if view.sample is None or view.unknown_mib:
        return replace(before, seen=(), present=replace(before.present, unknown=True))
    here = Seen(now, view.gap_mib, present_in(view, quotas))
    seen, present = (*_recent(before.seen, now), here), before.present.joined(here.who)
    if now - seen[0].at < STANDS_SECONDS:
        return replace(before, seen=seen, present=present)
    level = min(each.gap_mib for each in seen)
    learned = level <= MOST_KNOWN_MIB and not any(each.granted for each in quotas)
    known = level if learned else before.known_mib
    after = replace(before, known_mib=known, seen=seen, level_mib=level, present=present)
    if not after.matters:
        # What the later samples alone show may be of somebody who was there in the first.
        return replace(after, base_mib=level, present=_everybody(seen), since=None)
    return replace(after, since=now if before.since is None else before.since)


def _recent(seen: Sequence[Seen], now: float) -> Sequence[Seen]:
    """Keep the latest samples, back to one that is old enough."""
    old = sum(now - each.at >= STANDS_SECONDS for each in seen)
    return seen[max(0, old - 1) :]


def _everybody(seen: Sequence[Seen]) -> Presence:
    found = Presence()
    for each in seen:
        found = found.joined(each.who)
    return found


def member_of(quota: Quota) -> Member:
    """Name a container as ``Presence`` does."""
    return quota.pod_uid, quota.container, quota.container_id or ""


def present_in(view: GpuSnapshot, quotas: Sequence[Quota]) -> Presence:
    """Name who may take memory of a GPU in one sample."""
    mine = [each for each in quotas if not each.whole_pod]
    members = frozenset(map(member_of, mine))  # also those that were given nothing: they have the device
    started = {each.container_id for each in mine}
    starting = {each.pod_uid for each in mine if each.container_id is None}
    rows = [(each.identity.pid, each.identity.owner) for each in view.holders]
    pids = {pid for pid, owner in rows if not _has_quota(owner, started, starting)}
    return Presence(members=members, pids=frozenset(pids))


def _has_quota(owner: ContainerRef | None, started: set[str | None], starting: set[str]) -> bool:
    return owner is not None and (owner.container_id in started or owner.pod_uid in starting)
