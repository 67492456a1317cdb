"""Read from a claim's status what its node prepared: ``resize`` and ``explain`` check requests by it. Pure."""

from collections.abc import Mapping
from typing import Any

from enforcer.dra.allocation import containers
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.quota.from_claims import Terms, parse_mib
from gpushare import contract

Object = Mapping[str, Any]


def prepared_of(claim: Object, pod: Object) -> PreparedClaim | None:
    """Read from a claim's status what its node froze; ``None`` where it says nothing of limits, or of another pod's."""
    status, metadata = claim.get("status") or {}, claim["metadata"]
    about = {_share(each): each.get("data") or {} for each in status.get("devices") or []}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    order = {str(raw["name"]): number for number, (raw, _) in enumerate(containers(pod))}
    granted, limits = [], list[ContainerLimit]()
    for each in results:
        data = about.get(_share(each), {})
        mine = data.get("podUid") in {None, pod["metadata"]["uid"]}
        if each.get("driver") == contract.DRIVER and data.get("limits") and mine:
            granted.append(_granted(each, data))
            limits += [_limit(granted[-1], one) for one in data["limits"]]
    if not limits:
        return None
    limits.sort(key=lambda limit: order.get(limit.container, 0))
    return PreparedClaim(
        uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"], pod=pod["metadata"]["name"],
        pod_uid=pod["metadata"]["uid"], granted=tuple(granted), limits=tuple(dict.fromkeys(limits)), terms=Terms(),
    )  # fmt: skip


def _granted(result: Object, data: Mapping[str, Any]) -> AllocatedDevice:
    consumed = result.get("consumedCapacity") or {}
    return AllocatedDevice(
        request=result["request"].partition("/")[0], pool=result["pool"], device=result["device"],
        share_id=result.get("shareID"), gpu=str(data.get("uuid")),
        memory_mib=parse_mib(consumed.get(contract.CAPACITY_MEMORY)) or 0,
    )  # fmt: skip


def _limit(granted: AllocatedDevice, limit: Mapping[str, Any]) -> ContainerLimit:
    return ContainerLimit(
        container=limit["container"], request=granted.request, memory_mib=limit["memoryMiB"],
        compute=limit.get("computePercent"),
    )  # fmt: skip


def _share(entry: Object) -> tuple[object, ...]:
    return entry.get("pool"), entry.get("device"), entry.get("shareID")
