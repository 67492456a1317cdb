"""From prepared claims to the quotas in force: one row for each container and GPU, one for each pod and GPU. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.quota.from_claims import Object, Terms, parse_policy
from enforcer.quota.types import WHOLE_POD, Quota, pod_row
from gpushare.pod_claims import Use, claim_names, uses

_ANY: Final = ContainerLimit(container=WHOLE_POD, request="", memory_mib=0)


def quotas_of_prepared(
    prepared: Sequence[PreparedClaim], pods: Sequence[Object], namespaces: Iterable[Object], before: Sequence[Quota]
) -> tuple[Quota, ...]:
    """Work out the node's quotas from what was prepared; what was frozen is not read again from anywhere.

    Args:
        prepared: the claims that were prepared and not undone since.
        pods: of this node, for those that join the claims of others.
        namespaces: for their policy, which an operator may change at any time.
        before: earlier quotas; they know which pods joined the claims of others.
    """
    policy = {each["metadata"]["name"]: parse_policy(each["metadata"].get("annotations") or {}) for each in namespaces}
    found = {
        _key(quota): quota for claim in prepared for limit in claim.limits for quota in _quotas(claim, limit, policy)
    }
    users = (*prepared, *(other for claim in prepared for other in joined(claim, pods)))
    for user in users:
        for gpu in user.gpus:
            row = pod_row(_quota(user, _ANY, policy.get(user.namespace, user.terms), gpu, 0), user.mib_on(gpu))
            more = found.get(_key(row))
            found[_key(row)] = (
                row if more is None else pod_row(more, (more.reserved_mib or 0) + (row.reserved_mib or 0))
            )
    found = _still_joined(prepared, pods, before) | found
    return tuple(found[key] for key in sorted(found))


def _still_joined(
    prepared: Sequence[PreparedClaim], pods: Sequence[Object], before: Sequence[Quota]
) -> dict[tuple[str, str, str], Quota]:
    """Return the rows of pods that joined a claim: a tenant who may write their status could make that look undone."""
    claims, uids = {each.uid for each in prepared}, {each["metadata"]["uid"] for each in pods}
    return {
        _key(each): each
        for each in before
        if each.whole_pod and not each.reserved_mib and each.claim_uid in claims and each.pod_uid in uids
    }


def _key(quota: Quota) -> tuple[str, str, str]:
    return quota.pod_uid, quota.container, quota.gpu


def joined(claim: PreparedClaim, pods: Sequence[Object]) -> Iterator[PreparedClaim]:
    """Find the pods that use a claim which was prepared for another one.

    The kubelet does not ask again for a claim it has prepared, so nobody can refuse such a pod. What the claim consumed
    is its first pod's; the containers of the others may hold nothing of it.
    """
    for pod in pods:
        metadata = pod["metadata"]
        used = [each for each in uses(pod) if each.claim == claim.name]
        named = used or claim.name in claim_names(pod)
        if named and metadata.get("namespace") == claim.namespace and metadata["uid"] != claim.pod_uid:
            nothing = tuple(replace(each, memory_mib=0) for each in claim.granted)
            limits = tuple(_joined_limits(claim, used))
            yield replace(claim, pod=metadata["name"], pod_uid=metadata["uid"], granted=nothing, limits=limits)


def message_quotas(claim: PreparedClaim) -> tuple[Quota, ...]:
    """Name the containers of a claim, for messages."""
    return tuple(quota for limit in claim.limits for quota in _quotas(claim, limit, {}))


def _joined_limits(claim: PreparedClaim, used: Sequence[Use]) -> Iterator[ContainerLimit]:
    for container in dict.fromkeys(each.container for each in used):
        asked = {each.request for each in used if each.container == container}
        yield from (
            ContainerLimit(container=container, request=each.request, memory_mib=0)
            for each in claim.granted
            if each.gpu is not None and asked & {each.request, ""}
        )


def _quotas(claim: PreparedClaim, limit: ContainerLimit, policy: Mapping[str, Terms]) -> tuple[Quota, ...]:
    """Write one limit as quotas, one for each of its GPUs."""
    terms = policy.get(claim.namespace, claim.terms)
    return tuple(
        _quota(claim, limit, terms, granted.gpu or "", _reserved(claim, limit, granted))
        for granted in claim.of(limit.request)
    )


def _quota(claim: PreparedClaim, limit: ContainerLimit, terms: Terms, gpu: str, reserved_mib: int) -> Quota:
    """Write one under its namespace's policy as it is now, else as it was when it was prepared."""
    return Quota(
        claim_uid=claim.uid,
        namespace=claim.namespace,
        pod=claim.pod,
        pod_uid=claim.pod_uid,
        container=limit.container,
        container_id=None,
        gpu=gpu,
        memory_mib=limit.memory_mib,
        compute_percent=limit.compute,
        on_exceed=terms.on_exceed,
        grace_seconds=terms.grace_seconds,
        tolerance_mib=terms.tolerance(limit.memory_mib) if limit.memory_mib else 0,
        reserved_mib=reserved_mib,
        clients=claim.clients.get(limit.request) if limit.memory_mib else None,
        limit_mib=limit.limit_mib if limit.memory_mib else None,
        resized=any(each.done and each.container == limit.container for each in claim.answers),
    )


def _reserved(claim: PreparedClaim, limit: ContainerLimit, granted: AllocatedDevice) -> int:
    """The most the container could be given: its request's, or all its pod has of that GPU once quotas were moved."""
    if not limit.memory_mib:
        return 0
    moved = limit.memory_mib != granted.memory_mib or any(each.done for each in claim.answers)
    return claim.mib_on(granted.gpu or "") if moved else granted.memory_mib
