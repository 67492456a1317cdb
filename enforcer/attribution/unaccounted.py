"""GPU memory in use that nobody is counted for, of one GPU, sample by sample. Pure.

What the device uses is the sum of NVML's rows, what the driver needs itself, and the rest: managed memory
(``cudaMallocManaged``), memory that only file descriptors hold, memory listed under a pid that has ended. NVML writes
both numbers. A tenant chooses how much it takes that stands in no row, and no more: it writes neither number.

For a moment everybody's memory is in no row: rows come late, contexts end. So the rest has to stand for two samples.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from enforcer.attribution.cgroup import ContainerRef
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.quota.types import Quota

TOLERANCE_MIB: Final = 512
"""Up to this nothing follows: about a context on its way. Two contexts that end at once are gone 0.2 s later."""
STANDS: Final = 2
"""Samples in which memory has to be unaccounted for."""
MOST_KNOWN_MIB: Final = 512
"""More is not the driver's own, also where no share is on the GPU: nothing is learned then."""
MOST_PIDS: Final = 64
"""Processes outside shares that are remembered."""
Member = tuple[str, str, str]
"""A container: UID of its pod, name, and container id, empty until the enforcer knows it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What is known of one GPU's unaccounted memory; all in MiB.

    ``known_mib`` is what the device used beyond the rows when no share was on it. ``gaps`` are its use beyond the rows
    in the latest samples, ``level_mib`` the least of them, ``base_mib`` that when nothing was unaccounted for last.
    ``present``: who was there since then; ``latest``: who was in the latest sample. ``since``: when that began, on the
    loop's clock.
    """

    known_mib: int = 0
    gaps: tuple[int, ...] = ()
    level_mib: int = 0
    base_mib: int = 0
    present: Presence = field(default_factory=lambda: Presence(unknown=True))
    latest: Presence = field(default_factory=lambda: Presence(unknown=True))
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
    if view.sample is None:
        unknown = Presence(unknown=True)
        return replace(before, gaps=(), present=before.present.joined(unknown), latest=unknown)
    here, gaps = present_in(view, quotas), (*before.gaps, view.gap_mib)[-STANDS:]
    present = before.present.joined(here)
    if len(gaps) < STANDS:
        return replace(before, gaps=gaps, present=present, latest=here)
    level = min(gaps)
    learned = level <= MOST_KNOWN_MIB and not any(each.granted for each in quotas)
    known = level if learned else before.known_mib
    after = replace(before, known_mib=known, gaps=gaps, level_mib=level, present=present, latest=here)
    if not after.matters:
        # What the latest sample alone shows may be of somebody who was there in the sample before.
        return replace(after, base_mib=level, present=before.latest.joined(here), since=None)
    return replace(after, since=now if before.since is None else before.since)


def member_of(quota: Quota) -> Member:
    """Name a container as ``Presence`` does."""
    return quota.pod_uid, quota.container, quota.container_id or ""


def present_in(view: GpuSnapshot, quotas: Sequence[Quota]) -> Presence:
    """Name who may take memory of a GPU in one sample."""
    holding = view.reading or {}
    members = frozenset(member_of(each) for each in quotas if each.granted or each.container_id in holding)
    started = {each.container_id for each in quotas}
    starting = {each.pod_uid for each in quotas if each.container_id is None}
    rows = [(each.identity.pid, each.identity.owner) for each in view.holders]
    pids = {pid for pid, owner in rows if not _has_quota(owner, started, starting)}
    return Presence(members=members, pids=frozenset(pids))


def _has_quota(owner: ContainerRef | None, started: set[str | None], starting: set[str]) -> bool:
    return owner is not None and (owner.container_id in started or owner.pod_uid in starting)


def withheld_mib(account: Account, view: GpuSnapshot, quotas: Sequence[Quota], servers: Collection[int]) -> int:
    """Return the MiB that no new share may have.

    Unaccounted memory may be a container's that has not used up its reservation, which is withheld already. Whose it is
    may not be known: so it is withheld but for what every container that may have taken it has left. Where somebody
    else may have, or one of them has ended, all of it is.

    Args:
        account: of the GPU.
        view: the GPU, as it was sampled.
        quotas: the containers with a quota on it.
        servers: pids of MPS's servers, which take no memory beyond their row.
    """
    if not account.matters:
        return 0
    by_member, present = {member_of(each): each for each in quotas}, account.present.members
    if (
        account.present.unknown
        or account.present.pids.difference(servers)
        or not present
        or not present <= by_member.keys()
    ):
        return account.mib
    return max(0, account.mib - min(_left_mib(by_member[each], view) for each in present))


def _left_mib(quota: Quota, view: GpuSnapshot) -> int:
    """Return what a container has reserved and does not use."""
    used = (view.reading or {}).get(quota.container_id or "", ())
    return max(0, max(quota.memory_mib, quota.reserved_mib or 0) - sum(each.used_mib for each in used))
