"""Check again, before a claim is prepared, what admission should have checked, whichever way the claim came. Pure.

Only what the claim was allocated counts, not its DeviceClass or its name: a claim may be written by hand, made from
somebody's template, or made by the scheduler for an extended resource.
"""

from collections.abc import Iterable

from enforcer.dra.prepared_claim import ContainerLimit
from enforcer.quota.from_claims import Object
from enforcer.quota.kept_fields import MOST_USES, too_many
from gpushare import contract, host_access
from gpushare.errors import PermissionRefused, PolicyDenied
from gpushare.findings import collect
from gpushare.host_access import HostAccess
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason


def check(claim: Object, pod: Object, namespace: Object, host: HostAccess) -> NamespacePolicy:
    """Make sure that the namespace has opted in, and that the pod has no way around its share.

    Returns:
        The namespace's policy.

    Raises:
        PermissionRefused: it has not, its policy cannot be read, or the pod can.
    """
    if too_many(pod):
        raise PermissionRefused(f"the pod uses more than {MOST_USES} claims; use fewer claims")
    metadata = namespace["metadata"]
    name = metadata["name"]
    if (metadata.get("labels") or {}).get(contract.NAMESPACE_LABEL) != "true":
        message = f"claim {claim['metadata']['name']} has a GPU, but namespace {name} has not opted in"
        hint = f"ask a cluster operator for the namespace label {contract.NAMESPACE_LABEL}=true"
        raise PermissionRefused(f"{message}; {hint}", Reason.NOT_OPTED_IN)
    try:
        policy = NamespacePolicy.from_annotations(metadata.get("annotations") or {})
        collect(host_access.check, pod, policy.host_access(host))
    except PolicyDenied as error:
        raise PermissionRefused(error.message, error.reason) from error
    return policy


def check_amount(policy: NamespacePolicy, limit: ContainerLimit, *, instance: bool) -> None:
    """Make sure that a container gets no more than its namespace's maximum.

    Args:
        policy: of the namespace.
        limit: of the container.
        instance: whether it has a MIG instance, which limits its compute by itself.

    Raises:
        PermissionRefused: it would get more.
    """
    if limit.limit_mib is not None and (above := policy.above_memory_limit(limit.limit_mib)):
        raise PermissionRefused(f"container {limit.container}: {contract.MEMORY_LIMIT}: {above}", Reason.ABOVE_MAXIMUM)
    if policy.any_claims:
        return
    above = policy.above_memory(limit.memory_mib) or ("" if instance else policy.above_compute(limit.compute))
    if above:
        raise PermissionRefused(f"container {limit.container}: {above}", Reason.ABOVE_MAXIMUM)


def driver_capabilities(asked: Iterable[tuple[str, str | None]], policy: NamespacePolicy) -> dict[str, str]:
    """What NVIDIA's toolkit brings to the containers of each request: what they ask for within the policy.

    It stands in CDI's variables, because an image can ask for more as well as a pod.

    Args:
        asked: request and own ``NVIDIA_DRIVER_CAPABILITIES`` of each container.
        policy: of the namespace.
    """
    allowed = policy.driver_capabilities
    usual = [each for each in contract.DRIVER_CAPABILITIES.split(",") if each in allowed] or allowed
    found: dict[str, set[str]] = {}
    for request, own in asked:
        wanted = set((own or "").split(","))
        found.setdefault(request, set()).update(wanted if wanted <= {*allowed} else usual)
    return {request: ",".join(sorted(each)) for request, each in sorted(found.items())}
