"""From prepared claims to the quotas in force: what was frozen, and which containers run under it now. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.quota.from_claims import Object, Terms, container_ids, env_int, parse_policy
from enforcer.quota.types import Quota
from gpushare import contract
from gpushare.pod_claims import Use, claim_names, uses


def quotas_of_prepared(
    prepared: Sequence[PreparedClaim], pods: Sequence[Object], namespaces: Iterable[Object], before: Sequence[Quota]
) -> tuple[Quota, ...]:
    """Work out the node's quotas from what was prepared; what was frozen is not read again from anywhere.

    Args:
        prepared: the claims that were prepared and not undone since.
        pods: of this node, for the ids of their containers.
        namespaces: for their policy, which an operator may change at any time.
        before: earlier quotas; they know the containers of pods that are gone from the API server and still live here.
    """
    ids = _ids(pods, before)
    policy = {each["metadata"]["name"]: parse_policy(each["metadata"].get("annotations") or {}) for each in namespaces}
    users = (*(other for claim in prepared for other in joined(claim, pods)), *prepared)  # a pod's own claim counts
    # A container that asked for nothing gets no GPU, but another of its pod can hand it the way to one.
    found = {_key(each): each for each in _of_all_containers(users, ids, policy, lambda _claim, _gpu: 0)}
    # An older enforcer prepared claims without limits; their containers see all that was granted.
    without = [each for each in prepared if not each.limits]
    found |= {_key(each): each for each in _of_all_containers(without, ids, policy, PreparedClaim.mib_on)}
    found |= {
        _key(quota): quota
        for user in users
        for limit in user.limits
        for quota in _quotas(user, limit, ids.get(user.pod_uid, {}).get(limit.container), policy)
    }
    stated = _stated(pods, before)
    return tuple(replace(found[key], stated_mib=stated.get(key[:2])) for key in sorted(found))


def _stated(pods: Sequence[Object], before: Sequence[Quota]) -> Mapping[tuple[str, str], int | None]:
    """Read what the environment of each container states, by pod UID and name; as with ids, earlier quotas know."""
    known = {(quota.pod_uid, quota.container): quota.stated_mib for quota in before}
    return known | {
        (pod["metadata"]["uid"], each["name"]): env_int(each, contract.MEMORY_MIB)
        for pod in pods
        for each in (pod.get("spec") or {}).get("containers") or ()
    }


def _key(quota: Quota) -> tuple[str, str, str]:
    return quota.pod_uid, quota.container, quota.gpu


def _ids(pods: Sequence[Object], before: Sequence[Quota]) -> Mapping[str, Mapping[str, str]]:
    """Find the ids of containers by pod and name: those of now, else those that earlier quotas know."""
    found: dict[str, dict[str, str]] = {}
    for quota in before:
        if quota.container_id is not None:
            found.setdefault(quota.pod_uid, {})[quota.container] = quota.container_id
    for pod in pods:
        found.setdefault(pod["metadata"]["uid"], {}).update(container_ids(pod))
    return found


def _of_all_containers(
    claims: Iterable[PreparedClaim],
    ids: Mapping[str, Mapping[str, str]],
    policy: Mapping[str, Terms],
    amount: Callable[[PreparedClaim, str], int],
) -> Iterator[Quota]:
    """Give every container that runs in the pods of these claims so many MiB of each of their GPUs."""
    for claim in claims:
        terms = policy.get(claim.namespace, claim.terms)
        for gpu in claim.gpus:
            mib = amount(claim, gpu)
            for container, container_id in ids.get(claim.pod_uid, {}).items():
                limit = ContainerLimit(container=container, request="", memory_mib=mib)
                yield _quota(claim, limit, container_id, terms, gpu, mib)


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
            limits = tuple(_joined_limits(claim, used))
            yield replace(claim, pod=metadata["name"], pod_uid=metadata["uid"], limits=limits)


def message_quotas(claim: PreparedClaim) -> tuple[Quota, ...]:
    """Name the containers of a claim, for messages."""
    return tuple(quota for limit in claim.limits for quota in _quotas(claim, limit, None, {}))


def _joined_limits(claim: PreparedClaim, used: Sequence[Use]) -> Iterator[ContainerLimit]:
    for container in dict.fromkeys(each.container for each in used):
        asked = {each.request for each in used if each.container == container}
        yield from (
            ContainerLimit(container=container, request=each.request, memory_mib=0)
            for each in claim.granted
            if each.gpu is not None and asked & {each.request, ""}
        )


def _quotas(
    claim: PreparedClaim, limit: ContainerLimit, container_id: str | None, policy: Mapping[str, Terms]
) -> tuple[Quota, ...]:
    """Write one limit as quotas, one for each of its GPUs."""
    terms = policy.get(claim.namespace, claim.terms)
    return tuple(
        _quota(claim, limit, container_id, terms, granted.gpu or "", _reserved(claim, limit, granted))
        for granted in claim.of(limit.request)
    )


def _quota(
    claim: PreparedClaim, limit: ContainerLimit, container_id: str | None, terms: Terms, gpu: str, reserved_mib: int
) -> Quota:
    """Write one under its namespace's policy as it is now, else as it was when it was prepared."""
    return Quota(
        claim_uid=claim.uid,
        namespace=claim.namespace,
        pod=claim.pod,
        pod_uid=claim.pod_uid,
        container=limit.container,
        container_id=container_id,
        gpu=gpu,
        memory_mib=limit.memory_mib,
        compute_percent=limit.compute,
        on_exceed=terms.on_exceed,
        grace_seconds=terms.grace_seconds,
        tolerance_mib=terms.tolerance(limit.memory_mib) if limit.memory_mib else 0,
        reserved_mib=reserved_mib,
        clients=dict(claim.clients).get(limit.request) if limit.memory_mib else None,
        debt_credit=terms.debt_credit,
        debt_refill=terms.debt_refill,
    )


def _reserved(claim: PreparedClaim, limit: ContainerLimit, granted: AllocatedDevice) -> int:
    """The most the container could be given: its request's, or all its pod has of that GPU once quotas were moved."""
    if not limit.memory_mib:
        return 0
    moved = limit.memory_mib != granted.memory_mib or any(each.done for each in claim.answers)
    return claim.mib_on(granted.gpu or "") if moved else granted.memory_mib
