"""Whose unaccounted memory is: who can hold it, how much must be one container's, what new shares cannot have. Pure.

It is in three places: in mapped memory of processes that NVML lists (managed memory, or imported memory whose maker has
ended), behind descriptors, in whatever process they are, and in the driver. A limit of MPS in force bounds the first: a
process holds no more than its limit, in its row and beyond it together (measured on an H100, driver 580.159.04). So
what all others can hold at most is taken off; what is left must be the container's. Where that is not known, it is
nobody's. ``docs/reference/kills.md`` has the rule for people.

Who may write what this reads: NVML writes rows and use; the kernel, which process is in which container. A tenant
writes its processes' descriptors, and their environment, which can only speak against a limit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage, UsageByContainer, total_mib
from enforcer.attribution.unaccounted import TOLERANCE_MIB, Account, Holder, Holders, Member, member_of
from enforcer.quota.types import LimitStatus, Quota
from gpushare.reasons import Reason

BOUNDED: Final = frozenset({Reason.IN_FORCE, Reason.PER_PROCESS_ONLY})
"""States in which each process is an MPS client within its limit."""
MPS: Final = "mps"
"""Begins the names of the backends that bound memory beyond the rows: a limit of the cgroup does not."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What limit verification found of a container, and the processes that it looked at."""

    status: LimitStatus
    processes: frozenset[Identity]


Limits = Mapping[tuple[str, str], Verified]
"""By container id and GPU."""


class VerifiedLimits:
    """What limit verification found last. One thread replaces it; any may read it."""

    def __init__(self) -> None:
        self.latest: Limits = {}

    def replace(self, found: Limits) -> None:
        """Take in what was found again, of which processes."""
        self.latest = found


@dataclass(frozen=True, slots=True)
class Suspect:
    """A container with descriptors that may hold memory of a GPU, and the processes that have them."""

    quota: Quota
    holders: tuple[Holder, ...]

    @property
    def descriptors(self) -> int:
        """How many."""
        return sum(each.descriptors for each in self.holders)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What follows for one GPU.

    ``suspects`` have descriptors; ``elsewhere``: processes of no container with a quota on the GPU may hold it as well;
    ``complete``: all open files could be read.
    ``owner`` has at least ``owner_mib`` of it, of at least one process ``processes``; ``None``: nobody knows.
    ``withheld_mib``: new shares do not get it.
    """

    suspects: tuple[Suspect, ...] = ()
    elsewhere: bool = False
    complete: bool = True
    owner: Quota | None = None
    owner_mib: int = 0
    processes: tuple[Identity, ...] = ()
    withheld_mib: int = 0


def find(
    account: Account, view: GpuSnapshot, quotas: Sequence[Quota], holders: Holders, servers: Collection[int],
    limits: Limits,
) -> Finding:  # fmt: skip
    """Find out whose the unaccounted memory of a GPU is.

    Args:
        account: of the GPU.
        view: the GPU, as it was sampled last.
        quotas: the containers with a quota on it.
        holders: all processes of the node with descriptors.
        servers: pids of MPS's servers, which hold nothing beyond their row.
        limits: what is known of the containers' limits.
    """
    if not account.matters or view.reading is None:
        return Finding()
    mine = {each.container_id: each for each in quotas if each.container_id is not None and not each.whole_pod}
    suspects = _suspects(mine, holders)
    elsewhere = _elsewhere(view, mine, holders, servers)
    holding = [quota for container, quota in mine.items() if container in view.reading]
    possible = {member_of(each): each for each in (*holding, *(each.quota for each in suspects))}
    alone = _alone(account, possible, servers)
    owner = None if elsewhere else alone or _only_holder(suspects, view)
    mib = 0 if owner is None else _least_mib(account, owner, holding, view, limits)
    if owner is not alone:
        mib = max(0, mib - _ended_mib(view))
    # A descriptor can be where no look finds it: each share may have it, and where nobody is seen, others as well.
    may = tuple(mine.values()) if possible else ()
    return Finding(
        suspects=suspects, elsewhere=elsewhere, complete=holders.complete, owner=owner if mib else None, owner_mib=mib,
        processes=() if owner is None else _processes(owner, suspects, view.reading),
        withheld_mib=account.mib if elsewhere else _withheld_mib(account, may, view.reading),
    )  # fmt: skip


def _suspects(mine: Mapping[str, Quota], holders: Holders) -> tuple[Suspect, ...]:
    found: dict[str, tuple[Holder, ...]] = {}
    for each in holders.found:
        if each.identity.owner is not None and each.identity.owner.container_id in mine:
            found[each.identity.owner.container_id] = (*found.get(each.identity.owner.container_id, ()), each)
    return tuple(Suspect(mine[container], processes) for container, processes in found.items())


def _elsewhere(view: GpuSnapshot, mine: Mapping[str, Quota], holders: Holders, servers: Collection[int]) -> bool:
    """Return whether a process outside of these containers may hold it, or one that cannot be looked at."""
    processes = [each.identity for each in holders.found] + [each.identity for each in view.holders]
    others = (each for each in processes if each.owner is None or each.owner.container_id not in mine)
    return view.unknown_mib > 0 or not holders.complete or any(each.pid not in servers for each in others)


def _alone(account: Account, possible: Mapping[Member, Quota], servers: Collection[int]) -> Quota | None:
    """Return the one container that was there all the time, and that alone can hold it now."""
    present = account.present
    alone = len(present.members) == 1 and not present.unknown and not present.pids.difference(servers)
    return possible.get(next(iter(present.members))) if alone and present.members == possible.keys() else None


def _only_holder(suspects: Sequence[Suspect], view: GpuSnapshot) -> Quota | None:
    """Return the one container with descriptors, all in processes that NVML does not list.

    One that it lists has a use for them: PyTorch's expandable segments keep those of memory that they share.
    """
    listed = {each.identity for each in view.holders}
    only = suspects[0] if len(suspects) == 1 else None
    return None if only is None or any(each.identity in listed for each in only.holders) else only.quota


def _ended_mib(view: GpuSnapshot) -> int:
    """Return the MiB that NVML lists for processes that have ended: their children keep them, anybody's."""
    listed = 0 if view.sample is None else sum(each.used_mib for each in view.sample.processes)
    return max(0, listed - total_mib(view.holders))


def _least_mib(account: Account, owner: Quota, holding: Sequence[Quota], view: GpuSnapshot, limits: Limits) -> int:
    """Return what the owner holds of it at least: all but what the others can hold at most; 0: nobody knows."""
    reading = view.reading or {}
    others = [_most_mib(each, reading, limits) for each in holding if each.container_id != owner.container_id]
    known = [mib for mib in others if mib is not None]
    return max(0, account.grown_mib - TOLERANCE_MIB - sum(known)) if len(known) == len(others) else 0


def _most_mib(quota: Quota, reading: UsageByContainer, limits: Limits) -> int | None:
    """Return the MiB that a container's processes can hold beyond their rows; ``None``: any number."""
    holders = reading[quota.container_id or ""]
    verified = limits.get((quota.container_id or "", quota.gpu))
    if verified is None or verified.status.state not in BOUNDED or not verified.status.backend.startswith(MPS):
        return None
    if not {each.identity for each in holders} <= verified.processes:
        return None
    return max(0, len(holders) * max(quota.most_mib, quota.reserved_mib or 0) - total_mib(holders))


def _processes(owner: Quota, suspects: Sequence[Suspect], reading: UsageByContainer) -> tuple[Identity, ...]:
    """Return the processes that hold it: those with descriptors, or all that NVML lists, the largest first."""
    listed = sorted(reading.get(owner.container_id or "", ()), key=lambda each: -each.used_mib)
    return tuple(each.identity for suspect in suspects for each in suspect.holders) or tuple(e.identity for e in listed)


def _withheld_mib(account: Account, possible: Sequence[Quota], reading: UsageByContainer) -> int:
    """Return what new shares cannot have: all but what each of those who may hold it has reserved and does not use.

    Reserved memory is withheld already. Whose it is is not known, so the one counts that has least left.
    """
    left = [_reserved_mib(each) - total_mib(reading.get(each.container_id or "", ())) for each in possible]
    return max(0, account.mib - max(0, min(left, default=0)))


def _reserved_mib(quota: Quota) -> int:
    return max(quota.memory_mib, quota.reserved_mib or 0)


def counted(finding: Finding, reading: UsageByContainer) -> UsageByContainer:
    """Add what its owner holds at least to what the owner's processes hold by NVML's list."""
    if finding.owner is None or finding.owner.container_id is None:
        return reading
    listed = reading.get(finding.owner.container_id, ())
    return {**reading, finding.owner.container_id: _with_hidden(finding, listed)}


def _with_hidden(finding: Finding, listed: Sequence[ProcessUsage]) -> tuple[ProcessUsage, ...]:
    used = {each.identity: each.used_mib for each in listed}
    first, *others = finding.processes
    used = {**used, **{each: used.get(each, 0) for each in others}, first: used.get(first, 0) + finding.owner_mib}
    return tuple(ProcessUsage(identity, mib) for identity, mib in used.items())
