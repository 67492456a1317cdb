"""What containers may use of a GPU's compute that reserved none of it. Pure.

MPS takes a percentage of the SMs when a process starts and never again. So the cap is worked out once, when the claim
is prepared, and kept with it. What it rests on are claims that the scheduler allocated and this node prepared: no
tenant writes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from enforcer.dra.prepared_claim import AllocatedDevice, PreparedClaim
from enforcer.quota.from_claims import Object
from enforcer.quota.types import Mode
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import WHOLE_GPU_PERCENT

FLOOR: Final = 5
"""Percent that every container may use where others reserved all; ``memory`` may give it less.

It is the least that was measured, and does 0.088 of the work of a plain process (H100, driver 580.159.04,
2026-11-26)."""


def capped_by_memory(
    claim: PreparedClaim, namespace: Object, chart: int | str, capacity: Mapping[str, int]
) -> PreparedClaim:
    """Return the claim with the caps that ``memory`` sets, where the default of its namespace or the chart is that.

    The scheduler cannot count them: a claim states an amount, and how much of a GPU its memory is depends on the GPU.

    Args:
        claim: to be prepared.
        namespace: of its pod; operators write its annotations.
        chart: the default of the cluster.
        capacity: MiB that shares can have, by GPU.
    """
    policy = NamespacePolicy.from_annotations(namespace["metadata"].get("annotations") or {})
    if not policy.caps_by_memory(chart):
        return claim
    caps = dict(claim.caps)
    for grant in (each for each in claim.granted if each.gpu is not None):
        part = max(1, WHOLE_GPU_PERCENT * grant.memory_mib // max(1, capacity.get(grant.gpu or "", 0)))
        caps[grant.request] = min(part, caps.get(grant.request, WHOLE_GPU_PERCENT))
    return replace(claim, caps=caps)


def with_caps(claim: PreparedClaim, others: Sequence[PreparedClaim]) -> PreparedClaim:
    """Return the claim with the cap of each request that reserved no compute: what others have not reserved there.

    Args:
        claim: to be prepared, its GPUs as they are shared. A cap that it has already is an upper bound.
        others: the claims that are prepared on this node.
    """
    reserved = reserved_compute((claim, *others))
    caps = {
        grant.request: min(
            claim.caps.get(grant.request, WHOLE_GPU_PERCENT),
            max(FLOOR, WHOLE_GPU_PERCENT - reserved.get(grant.gpu or "", 0)),
        )
        for grant in uncapped(claim)
    }
    return replace(claim, caps={name: cap for name, cap in caps.items() if cap < WHOLE_GPU_PERCENT})


def beside(claim: PreparedClaim, grant: AllocatedDevice, prepared: Sequence[PreparedClaim]) -> int:
    """Return the percent of a GPU that all but one request may use, those of the same claim included.

    Args:
        claim: the claim of that request.
        grant: what the request was allocated of the GPU.
        prepared: all claims that are prepared on this node.
    """
    return sum(
        each.compute or other.caps.get(each.request, WHOLE_GPU_PERCENT)
        for other in prepared
        for each in other.granted
        if each.gpu == grant.gpu and (other.uid, each.request) != (claim.uid, grant.request)
    )


def stated(percents: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """Return the percentages that pods give themselves, as upper bounds: CDI's would replace one that is lower.

    Args:
        percents: the request of each container that asked for no compute, and the percentage in its environment.
            Tenants write it. It counts only where all containers of a request have the same.
    """
    found: dict[str, set[int | None]] = {}
    for request, percent in percents:
        found.setdefault(request, set()).add(percent)
    alike = {request: next(iter(values)) for request, values in found.items() if len(values) == 1}
    return {request: own for request, own in alike.items() if own and own < WHOLE_GPU_PERCENT}


def reserved_compute(claims: Sequence[PreparedClaim]) -> Mapping[str, int]:
    """Add up by GPU, in percent, the compute that claims consumed."""
    found: dict[str, int] = {}
    for grant in (each for claim in claims for each in claim.granted if each.gpu is not None):
        found[grant.gpu or ""] = found.get(grant.gpu or "", 0) + grant.compute
    return found


def uncapped(claim: PreparedClaim) -> tuple[AllocatedDevice, ...]:
    """Return what requests were allocated that reserved no compute of a GPU which is shared through MPS."""
    capped = {limit.request for limit in claim.limits if limit.compute is not None}
    return tuple(
        each for each in claim.granted
        if each.mode is Mode.MPS and not each.compute and each.request not in capped
    )  # fmt: skip
