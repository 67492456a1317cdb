"""Which processes of a container a kill is to end. Pure."""

from collections.abc import Sequence

from enforcer.attribution.snapshot import Holder, total
from enforcer.quota.types import OnExceed, Quota


def targets(quota: Quota, holders: Sequence[Holder]) -> tuple[Holder, ...]:
    """Choose the processes to end: the largest first until the rest is within the ceiling, or all of the container."""
    ordered = sorted(holders, key=lambda holder: (-holder.used_mib, holder.identity.pid))
    if quota.on_exceed is OnExceed.KILL_CONTAINER:
        return tuple(ordered)
    chosen: list[Holder] = []
    left = total(ordered)
    for holder in ordered:
        if left <= quota.ceiling_mib:
            break
        chosen.append(holder)
        left -= holder.used_mib
    return tuple(chosen)
