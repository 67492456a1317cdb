"""Read from a claim's status what it was allocated on gpu-share's GPUs, and what the node prepared of it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from enforcer.dra.allocation import containers
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.quota.from_claims import Terms, parse_mib
from gpushare import contract
from gpushare.raw_objects import mapping, objects, text

Object = Mapping[str, Any]


def allocated(claim: Object) -> Iterator[tuple[Object, Object]]:
    """Yield each device of ours that a claim was allocated, with what its node wrote about it, if anything."""
    status = mapping(claim, "status")
    about = {_share(each): mapping(each, "data") for each in objects(status, "devices")}
    for result in objects(mapping(mapping(status, "allocation"), "devices"), "results"):
        if result.get("driver") == contract.DRIVER:
            yield result, about.get(_share(result), {})


def prepared_of(claim: Object, pod: Object) -> PreparedClaim | None:
    """Read from a claim's status what its node froze; ``None`` where it says nothing of limits, or of another pod's."""
    metadata = claim["metadata"]
    order = {str(raw["name"]): number for number, (raw, _) in enumerate(containers(pod))}
    granted, limits = [], list[ContainerLimit]()
    for each, data in allocated(claim):
        if data.get("limits") and data.get("podUid") in {None, pod["metadata"]["uid"]}:
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


def _share(entry: Object) -> tuple[str, ...]:
    """What tells the shares of a claim apart: two requests may have got the same device."""
    return tuple(text(entry, key) for key in ("pool", "device", "shareID"))
