"""Is there room for a claim on its GPU while others are still on their way out? Pure.

The scheduler counts a claim as gone when its object is, which after a forced deletion is before its processes are.
"""

from collections.abc import Iterable, Mapping, Sequence

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.dra.prepared_claim import PreparedClaim
from gpushare.errors import PrepareError
from gpushare.quantity import format_mib
from gpushare.reasons import Reason


def has_processes(claim: PreparedClaim, views: Iterable[GpuSnapshot]) -> bool | None:
    """Tell whether processes of a claim's pod are on its GPUs; ``None`` when blind."""
    mine = [view for view in views if view.gpu.uuid in claim.gpus]
    if any(view.sample is None for view in mine) or len(mine) < len(claim.gpus):
        return None
    return any(_is_of(claim, holder.identity.owner) for view in mine for holder in view.holders)


def used_mib(claim: PreparedClaim, view: GpuSnapshot) -> int | None:
    """MiB that processes of a claim's pod hold of one GPU, ``None`` when blind."""
    if view.sample is None:
        return None
    return sum(holder.used_mib for holder in view.holders if _is_of(claim, holder.identity.owner))


def check_capacity(
    claim: PreparedClaim,
    prepared: Sequence[PreparedClaim],
    ending: Sequence[PreparedClaim],
    views: Mapping[str, GpuSnapshot],
    capacity: Mapping[str, int],
) -> None:
    """Make sure that a claim fits beside all that is not gone yet.

    Args:
        claim: the new one.
        prepared: the claims that were prepared and not undone.
        ending: those that were undone while their processes lived on.
        views: what was just seen, by GPU.
        capacity: MiB that shares can have, by GPU.

    Raises:
        PrepareError: it does not fit yet.
    """
    for gpu in claim.gpus:
        beside = [each for each in prepared if each.uid != claim.uid and gpu in each.gpus]
        others = sum(each.mib_on(gpu) for each in beside)
        # Processes are known by their pod: each pod counts once, and one with a claim in force by that claim alone.
        lasting = {each.pod_uid for each in beside}
        gone = {each.pod_uid: each for each in ending if gpu in each.gpus and each.pod_uid not in lasting}
        leaving = sum(_leaving(each, gpu, views.get(gpu)) for each in gone.values())
        if claim.mib_on(gpu) + others + leaving > capacity.get(gpu, 0):
            raise PrepareError(
                f"GPU memory is not free yet: this pod needs {format_mib(claim.mib_on(gpu))}, but "
                f"{format_mib(others + leaving)} of {format_mib(capacity.get(gpu, 0))} are in use by other (possibly "
                "terminating) pods. Retrying. If this persists, delete the pod so that it is rescheduled",
                Reason.GPU_MEMORY_IN_USE,
            )


def _leaving(claim: PreparedClaim, gpu: str, view: GpuSnapshot | None) -> int:
    """What still counts of a claim that was undone: what its processes hold, or all of it while that is unknown."""
    used = None if view is None else used_mib(claim, view)
    return claim.mib_on(gpu) if used is None else used


def _is_of(claim: PreparedClaim, owner: object) -> bool:
    return getattr(owner, "pod_uid", None) == claim.pod_uid
