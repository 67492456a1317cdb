"""Memory that no share may have, because processes of no share hold it. Pure.

It is steadied, so that its ups and downs do not rewrite slices.
More is taken off at once; less is given back only when it has been less for a while.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.quota.types import Quota

STEP_MIB: Final = 512
"""Foreign use is rounded up to this."""
LOWER_AFTER: Final = 6
"""Looks, one at each offer, for which it has to be less."""


@dataclass(frozen=True, slots=True)
class SmoothedUsage:
    """MiB taken off one GPU's capacity, and for how many looks it would have been less."""

    mib: int = 0
    lower_for: int = 0


def foreign_mib(
    views: Sequence[GpuSnapshot], quotas: Sequence[Quota], own: Collection[str] = (), servers: Collection[int] = ()
) -> dict[str, int]:
    """Return, for each GPU that could be read, the MiB of processes of pods without a share on it.

    Args:
        views: what was seen.
        quotas: the shares; a pod that has one is no stranger, whichever of its containers holds what.
            One of 0 MiB is no share.
        own: UIDs of pods that are accounted for elsewhere: ours, with MPS's server, whose context is taken off already,
            and those on their way out.
        servers: pids of MPS's servers: in a cgroup namespace of our own, their cgroup does not show our pod.
    """
    pods = {(quota.gpu, quota.pod_uid) for quota in quotas if quota.memory_mib}
    return {
        view.gpu.uuid: sum(
            each.used_mib
            for each in view.holders
            if each.identity.pid not in servers and _foreign(each, view.gpu.uuid, pods, own)
        )
        for view in views
        if view.sample is not None and not view.unknown_mib
    }


def rounded(mib: int) -> int:
    """Round up to whole steps."""
    return -(-mib // STEP_MIB) * STEP_MIB


NOTHING: Final[Mapping[str, int]] = {}


def terminating_mib(
    views: Sequence[GpuSnapshot], leaving: Collection[str], withdrawn: Mapping[str, int] = NOTHING
) -> dict[str, int]:
    """Count what the scheduler takes for free too early. It goes within seconds: nothing to steady.

    Args:
        views: what was seen.
        leaving: UIDs of pods whose claims were undone; what they hold counts, rounded up.
        withdrawn: MiB by GPU that claims reserve which the API server has not allocated any more.
    """
    used = {
        view.gpu.uuid: sum(
            each.used_mib
            for each in view.holders
            if each.identity.owner is not None and each.identity.owner.pod_uid in leaving
        )
        for view in views
    }
    return {gpu: rounded(mib) + withdrawn.get(gpu, 0) for gpu, mib in used.items()}


def smooth(before: Mapping[str, SmoothedUsage], now: Mapping[str, int]) -> dict[str, SmoothedUsage]:
    """Take in one look; a GPU that could not be read stays as it was."""
    return {**before, **{gpu: _steady(before.get(gpu, SmoothedUsage()), mib) for gpu, mib in now.items()}}


def _steady(before: SmoothedUsage, mib: int) -> SmoothedUsage:
    wanted = rounded(mib)
    if wanted >= before.mib or before.lower_for + 1 >= LOWER_AFTER:
        return SmoothedUsage(wanted)
    return SmoothedUsage(before.mib, before.lower_for + 1)


def _foreign(holder: ProcessUsage, gpu: str, pods: Collection[tuple[str, str]], own: Collection[str]) -> bool:
    owner = holder.identity.owner
    return owner is None or ((gpu, owner.pod_uid) not in pods and owner.pod_uid not in own)
