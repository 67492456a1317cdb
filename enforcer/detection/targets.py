"""Which processes of a container a kill is to end. Pure."""

from collections.abc import Sequence

from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.quota.types import OnExceed, Quota


def select_targets(quota: Quota, holders: Sequence[ProcessUsage]) -> tuple[ProcessUsage, ...]:
    """Choose the processes to end: the largest first until the rest is within the ceiling, or all of the container."""
    ordered = sorted(holders, key=lambda holder: (-holder.used_mib, holder.identity.pid))
    if quota.on_exceed is OnExceed.KILL_CONTAINER:
        return tuple(ordered)
    chosen: list[ProcessUsage] = []
    left = total_mib(ordered)
    for holder in ordered:
        if left <= quota.ceiling_mib:
            break
        chosen.append(holder)
        left -= holder.used_mib
    return tuple(chosen)
