"""When memory was short, and for whom: what is kept of it in case a container fails soon after. Pure.

No event of NVML reports a refused allocation. So each sample records which containers were close to their own
quota or shared a GPU that was close to full, and which processes used the memory. A container that is refused while
it is far below both leaves no trace here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.detection.detector import phase
from enforcer.detection.types import Phase
from enforcer.quota.types import Quota
from enforcer.status.pod_status import Seen

NEAR_QUOTA: Final = 0.95
"""Share of its quota from which a container may have been refused memory."""
NEARLY_FULL: Final = 0.05
"""Share of a GPU's memory: with less left, anybody on it may have been refused memory."""
KEPT_SECONDS: Final = 120.0
KEPT: Final = 1024
"""Marks at most: 64 GPUs with sixteen containers each."""
HOLDERS: Final = 64
"""Holders named in one mark."""
Key = tuple[str, str]
"""Container id and GPU UUID."""


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """GPU memory of a container, or of processes without a quota. For operators alone."""

    who: str
    mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureSample:
    """One container on one GPU while memory was short; times by the wall clock, in seconds.

    ``own_mib`` is its own use, ``others_mib`` the use of all other pods and programs together, ``free_mib`` what
    was left of ``gpu_mib``; ``holders`` largest first. ``ended`` is
    when we were last about to end it, or had just done so; ``None`` where we never were.
    """

    quota: Quota
    since: float
    last: float
    own_mib: int
    others_mib: int
    free_mib: int
    gpu_mib: int
    unaccounted_mib: int = 0
    """MiB in use that nobody is counted for."""
    holders: tuple[ContainerUsage, ...] = ()
    ended: float | None = None

    @property
    def near_quota(self) -> bool:
        """Whether it stood close to its own quota."""
        return self.own_mib >= NEAR_QUOTA * self.quota.most_mib

    @property
    def gpu_full(self) -> bool:
        """Whether there was hardly anything left for anybody."""
        return self.free_mib < NEARLY_FULL * self.gpu_mib

    @property
    def headroom_mib(self) -> int:
        """What it could still have had."""
        return min(self.quota.most_mib - self.own_mib, self.free_mib)


Marks = Mapping[Key, PressureSample]


def update_pressure(before: Marks, seen: Seen, wall: float) -> dict[Key, PressureSample]:
    """Take in one look; ``wall`` is the wall clock's time of it."""
    kept = {key: mark for key, mark in before.items() if 0 <= wall - mark.last <= KEPT_SECONDS}
    for view in seen.snapshot.views:
        if view.sample is not None:
            for mark in _of_gpu(seen, view, wall):
                key = (mark.quota.container_id or "", view.gpu.uuid)
                kept[key] = _continued(kept.get(key), mark)
    newest = sorted(kept, key=lambda key: kept[key].last)[-KEPT:]
    return {key: kept[key] for key in newest}


def _of_gpu(seen: Seen, view: GpuSnapshot, wall: float) -> Iterator[PressureSample]:
    """Mark every container that may be refused memory on this GPU now."""
    assert view.sample is not None
    used, total = view.sample.used_mib, view.gpu.memory_mib - view.gpu.reserved_mib
    quotas = [quota for quota in seen.snapshot.quotas if quota.gpu == view.gpu.uuid and quota.container_id]
    full = total - used < NEARLY_FULL * total
    holders: tuple[ContainerUsage, ...] | None = None
    unaccounted, _ = seen.snapshot.unaccounted.get(view.gpu.uuid, (0, 0))
    for quota in quotas:
        own = seen.used(quota) or 0
        if not quota.granted or (not full and own < NEAR_QUOTA * quota.most_mib):
            continue
        holders = _holders(seen, view, quotas) if holders is None else holders
        pod = sum(seen.used(each) or 0 for each in quotas if each.pod_uid == quota.pod_uid)
        yield PressureSample(
            quota=quota, since=wall, last=wall, own_mib=own, others_mib=max(0, used - pod), gpu_mib=total,
            free_mib=max(0, total - used), unaccounted_mib=unaccounted, holders=holders,
            ended=wall if _ours(seen, quota) else None,
        )  # fmt: skip


def _continued(before: PressureSample | None, mark: PressureSample) -> PressureSample:
    """Go on from what was noted of a container; its use at the end counts, not the zero after it."""
    if before is None:
        return mark
    ended = before.ended if mark.ended is None else mark.ended
    if before.own_mib and not mark.own_mib:
        return replace(before, ended=ended)
    return replace(mark, since=before.since, ended=ended)


def _ours(seen: Seen, quota: Quota) -> bool:
    return phase(seen.snapshot.state, quota, seen.snapshot.now) in {Phase.KILLING, Phase.COOLING_DOWN}


def _holders(seen: Seen, view: GpuSnapshot, quotas: Sequence[Quota]) -> tuple[ContainerUsage, ...]:
    known = {quota.container_id for quota in quotas}
    rows = [ContainerUsage(f"{each.namespace}/{each.pod}/{each.container}", seen.used(each) or 0) for each in quotas]
    for holder in view.holders:
        owner = holder.identity.owner
        if owner is None or owner.container_id not in known:
            rows.append(ContainerUsage(f"process {holder.identity.pid}", holder.used_mib))
    rows.append(ContainerUsage("nobody seen", view.gap_mib))
    return tuple(sorted((row for row in rows if row.mib), key=lambda row: -row.mib)[:HOLDERS])
