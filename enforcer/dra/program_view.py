"""Keep with a claim what its programs see of their GPUs, and which variables of frameworks they get. Pure.

Both are kept when the claim is prepared, because the file of a claim is written again without the pod and the GPU.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from enforcer.dra.allocation import PrepareRequest, containers
from enforcer.dra.prepared_claim import PreparedClaim, Seen
from enforcer.limits.backend import Backend
from enforcer.nvml import multiprocessors
from enforcer.nvml.types import Gpu
from enforcer.quota.from_claims import Object, parse_int
from gpushare import contract, framework_variables
from gpushare.namespace_policy import NamespacePolicy


def with_view(
    claim: PreparedClaim,
    ask: PrepareRequest,
    gpus: Collection[Gpu],
    backends: Mapping[str, str],
    *,
    frameworks: bool = True,
) -> PreparedClaim:
    """Return the claim with what its programs see.

    Args:
        claim: as ``allocation.prepare`` returned it.
        ask: what it was prepared from.
        gpus: of the node.
        backends: by UUID, who keeps the limits on a GPU. While that is not known, CUDA is taken to report the whole
            GPU: the fraction is then too small rather than too large, until ``following`` is asked.
        frameworks: whether frameworks get variables where the namespace says nothing else.
    """
    seen = tuple(
        Seen(
            gpu=gpu.uuid,
            total_mib=gpu.memory_mib - gpu.reserved_mib,
            by_cgroup=backends.get(gpu.uuid) == Backend.DRIVER_CGROUP,
            sms=gpu.sms or multiprocessors.most(gpu.compute_capability),  # too much reserve rather than too little
        )
        for gpu in sorted(gpus)
        if gpu.uuid in claim.gpus
    )
    settings = _settings(claim, ask) if frameworks else {}
    return replace(claim, seen=seen, settings=settings, clients=_clients(ask.claim))


def _clients(claim: Object) -> dict[str, int]:
    """Read by request how many MPS clients were consumed; of several GPUs each has a daemon of its own."""
    found: dict[str, int] = {}
    for each in claim["status"]["allocation"]["devices"]["results"]:
        consumed = (each.get("consumedCapacity") or {}).get(contract.CAPACITY_CLIENTS)
        if each.get("driver") == contract.DRIVER and (number := parse_int(consumed)):
            found[each["request"].partition("/")[0]] = number
    return found


def following(claim: PreparedClaim, backends: Mapping[str, str]) -> PreparedClaim:
    """Return the claim as its programs see its GPUs now; a GPU whose back end is not known is seen as before."""
    seen = tuple(
        replace(each, by_cgroup=backends[each.gpu] == Backend.DRIVER_CGROUP) if each.gpu in backends else each
        for each in claim.seen
    )
    return replace(claim, seen=seen)


def _settings(claim: PreparedClaim, ask: PrepareRequest) -> dict[str, tuple[str, ...]]:
    policy = NamespacePolicy.from_annotations(ask.namespace["metadata"].get("annotations") or {})
    if policy.frameworks is None:
        return {}
    raw = {each["name"]: each for each, _ in containers(ask.pod)}
    found = {
        request: framework_variables.free([raw[each.container] for each in claim.limits_of(request)], policy.frameworks)
        for request in dict.fromkeys(limit.request for limit in claim.limits)
    }
    return {request: keys for request, keys in found.items() if keys}
