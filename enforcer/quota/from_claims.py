"""Who may hold how much: from allocated claims, the pods that use them, and the namespaces' policy. Pure.

What a claim consumed is what the scheduler promised; a container never gets more than that, whatever its pod says.
Annotations of pods are not read here: they are requests, and they can be edited. Raw objects in, as the API server
gives them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from enforcer.quota.types import DEFAULT_GRACE_SECONDS, WHOLE_POD, OnExceed, Quota, pod_row
from gpushare import contract
from gpushare.errors import QuantityError
from gpushare.patterns import Pattern
from gpushare.pod_claims import uses
from gpushare.quantity import MIB, parse_duration, parse_memory, parse_percent

Object = Mapping[str, Any]
_INTEGER: Final = Pattern(r"[0-9]{1,12}", 12)
_QUANTITY: Final = Pattern(r"([0-9]{1,18})(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?", 20)
_UNITS: Final = {
    None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
}  # fmt: skip
HUNDRED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A namespace's say in enforcement. The tolerance is either MiB or percent of the quota, or the default."""

    on_exceed: OnExceed = OnExceed.KILL
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    tolerance_mib: int | None = None
    tolerance_percent: int | None = None

    def tolerance(self, memory_mib: int) -> int | None:
        """Tolerance in MiB for a quota of that size; ``None`` for the default."""
        if self.tolerance_percent is not None:
            return memory_mib * self.tolerance_percent // HUNDRED
        return self.tolerance_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one request of a claim was given: a GPU, and how much of it (``None``: the claim does not say)."""

    claim_uid: str
    request: str
    gpu: str
    memory_mib: int | None
    compute: int | None


def quotas_of(
    node: str, claims: Iterable[Object], pods: Iterable[Object], namespaces: Iterable[Object], slices: Iterable[Object]
) -> tuple[Quota, ...]:
    """Work out this node's quotas, in a stable order: one for each container and GPU, and one for each pod and GPU."""
    devices = devices_of(node, slices)
    granted = {(_namespace(claim), _name(claim)): claim for claim in claims}
    terms = {_name(namespace): parse_policy(_annotations(namespace)) for namespace in namespaces}
    found: dict[tuple[str, str, str], Quota] = {}
    for pod in pods:
        if (pod.get("spec") or {}).get("nodeName") != node:
            continue
        for quota in _of_pod(pod, granted, devices, terms.get(_namespace(pod), Terms())):
            key = (quota.pod_uid, quota.container, quota.gpu)
            found[key] = _together(found[key], quota) if key in found else quota
    return tuple(found[key] for key in sorted(found))


def devices_of(node: str, slices: Iterable[Object]) -> dict[tuple[str, str], str]:
    """Read our slices of this node: GPU UUID by (pool, device). Of several generations of a pool the newest counts."""
    ours = [each["spec"] for each in slices if _is_ours(each.get("spec") or {}, node)]
    newest: dict[str, int] = defaultdict(int)
    for spec in ours:
        newest[spec["pool"]["name"]] = max(newest[spec["pool"]["name"]], spec["pool"].get("generation", 0))
    return {
        (spec["pool"]["name"], device["name"]): uuid
        for spec in ours
        if spec["pool"].get("generation", 0) == newest[spec["pool"]["name"]]
        for device in spec.get("devices") or []
        if (uuid := _uuid(device)) is not None
    }


def parse_policy(annotations: Mapping[str, str]) -> Terms:
    """Read a namespace's policy; what cannot be read is as if it were not there (admission refuses such namespaces)."""
    terms = Terms()
    for key, reader in _TERMS.items():
        try:
            terms = reader(terms, annotations[key])
        except (KeyError, ValueError, QuantityError):
            continue
    return terms


def allocations_of(claim: Object, devices: Mapping[tuple[str, str], str]) -> list[Allocation]:
    """Read what a claim was allocated on this node's GPUs."""
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [
        Allocation(
            claim_uid=claim["metadata"]["uid"],
            request=result["request"].partition("/")[0],
            gpu=devices[result["pool"], result["device"]],
            memory_mib=parse_mib((result.get("consumedCapacity") or {}).get(contract.CAPACITY_MEMORY)),
            compute=parse_int((result.get("consumedCapacity") or {}).get(contract.CAPACITY_COMPUTE)),
        )
        for result in allocation.get("results") or []
        if result.get("driver") == contract.DRIVER and (result.get("pool"), result.get("device")) in devices
    ]


def _of_pod(
    pod: Object, claims: Mapping[tuple[str, str], Object], devices: Mapping[tuple[str, str], str], terms: Terms
) -> Iterator[Quota]:
    names = {each.entry: each.claim for each in uses(pod)}
    found = {entry: claims.get((_namespace(pod), name)) for entry, name in names.items()}
    granted = {
        entry: allocations_of(claim, devices)
        for entry, claim in found.items()
        if claim is not None and _reserved_for(claim, pod)
    }
    for container in _containers(pod):
        for used in (container.get("resources") or {}).get("claims") or []:
            grants = granted.get(used["name"], [])
            for grant in grants:
                if used.get("request") in {None, "", grant.request}:
                    bound = _whole(grant, grants) if _is_plain_init(container, pod) else grant
                    quota = _quota(pod, container, bound, terms)
                    yield from () if quota is None else (quota,)
    yield from _pod_rows(pod, [grant for grants in granted.values() for grant in grants], terms)


def _pod_rows(pod: Object, grants: Sequence[Allocation], terms: Terms) -> Iterator[Quota]:
    """Write a row for the whole pod on each GPU of which its claims say how much they reserved."""
    for gpu in sorted({each.gpu for each in grants}):
        here = {(each.claim_uid, each.request): each for each in grants if each.gpu == gpu}
        amounts = [each.memory_mib for each in here.values()]
        like = _quota(pod, {"name": WHOLE_POD}, next(iter(here.values())), terms)
        if like is not None and None not in amounts:
            yield pod_row(like, sum(filter(None, amounts)))


def _containers(pod: Object) -> list[Object]:
    spec = pod.get("spec") or {}
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def _is_plain_init(container: Object, pod: Object) -> bool:
    plain = [
        each for each in (pod.get("spec") or {}).get("initContainers") or [] if each.get("restartPolicy") != "Always"
    ]
    return any(each is container for each in plain)


def _whole(grant: Allocation, grants: Sequence[Allocation]) -> Allocation:
    """Widen a grant to all that the claim consumed of its GPU.

    A plain init container runs before the apps and may hold what is reserved for all of them, so the claim is not
    raised for it where that suffices.
    """
    beside = [each for each in grants if each.gpu == grant.gpu]
    if any(each.memory_mib is None for each in beside):
        return grant
    compute = sum(each.compute or 0 for each in beside)
    return replace(grant, memory_mib=sum(each.memory_mib or 0 for each in beside), compute=min(compute, HUNDRED))


def _quota(pod: Object, container: Object, grant: Allocation, terms: Terms) -> Quota | None:
    memory = _least(env_int(container, contract.MEMORY_MIB), grant.memory_mib)
    if memory is None:
        return None
    return Quota(
        claim_uid=grant.claim_uid,
        namespace=_namespace(pod),
        pod=_name(pod),
        pod_uid=pod["metadata"]["uid"],
        container=container["name"],
        container_id=None,
        gpu=grant.gpu,
        memory_mib=memory,
        compute_percent=_least(env_int(container, contract.MPS_THREAD_PERCENTAGE), grant.compute) or None,
        on_exceed=terms.on_exceed,
        grace_seconds=terms.grace_seconds,
        tolerance_mib=terms.tolerance(memory),
    )


def _together(one: Quota, other: Quota) -> Quota:
    """One container with two requests on the same GPU may hold both."""
    compute = (one.compute_percent or 0) + (other.compute_percent or 0)
    tolerances = [quota.tolerance_mib for quota in (one, other) if quota.tolerance_mib is not None]
    return replace(
        one,
        memory_mib=one.memory_mib + other.memory_mib,
        compute_percent=min(compute, HUNDRED) or None,
        tolerance_mib=max(tolerances, default=None),
    )


def _reserved_for(claim: Object, pod: Object) -> bool:
    users = (claim.get("status") or {}).get("reservedFor") or []
    return any(user.get("resource") == "pods" and user.get("uid") == pod["metadata"]["uid"] for user in users)


def env_int(container: Object, name: str) -> int | None:
    """A whole number the webhook wrote into a container; the last entry of a name is the one that counts."""
    values = [entry.get("value") for entry in container.get("env") or [] if entry.get("name") == name]
    value = values[-1] if values else None
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else None


def _is_ours(spec: Object, node: str) -> bool:
    return spec.get("driver") == contract.DRIVER and spec.get("nodeName") == node


def _uuid(device: Object) -> str | None:
    """The ``uuid`` attribute, with or without the driver's name before it."""
    attributes = device.get("attributes") or {}
    value = attributes.get(contract.ATTRIBUTE_UUID) or attributes.get(contract.ATTRIBUTE_UUID.partition("/")[2]) or {}
    return value.get("string")


def parse_bytes(quantity: Any) -> int | None:
    """Read memory as the API server writes it, in bytes; ``None`` where it is none."""
    match = _QUANTITY.fullmatch(quantity) if isinstance(quantity, str) else None
    return None if match is None else int(match.group(1)) * _UNITS[match.group(2)]


def parse_mib(quantity: Any) -> int | None:
    """Read memory as the API server writes it, rounded down to MiB; ``None`` where it is none."""
    found = parse_bytes(quantity)
    return None if found is None else found // MIB


def parse_int(quantity: Any) -> int | None:
    """Read a whole number as the API server writes it; ``None`` where it is none."""
    return int(quantity) if isinstance(quantity, str) and _INTEGER.fullmatch(quantity) else None


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _name(item: Object) -> str:
    name: str = item["metadata"]["name"]
    return name


def _namespace(item: Object) -> str:
    namespace: str = item["metadata"].get("namespace", "")
    return namespace


def _annotations(item: Object) -> Mapping[str, str]:
    return item["metadata"].get("annotations") or {}


def _tolerance(terms: Terms, value: str) -> Terms:
    if value.endswith("%"):
        return replace(terms, tolerance_percent=parse_percent(value), tolerance_mib=None)
    return replace(terms, tolerance_mib=parse_memory(value), tolerance_percent=None)


_TERMS: Final[Mapping[str, Callable[[Terms, str], Terms]]] = {
    contract.ON_EXCEED: lambda terms, value: replace(terms, on_exceed=OnExceed(value)),
    contract.GRACE_PERIOD: lambda terms, value: replace(terms, grace_seconds=parse_duration(value)),
    contract.TOLERANCE: _tolerance,
}


def known(quotas: Sequence[Quota]) -> frozenset[str]:
    """The containers that have a quota."""
    return frozenset(each.container_id for each in quotas if each.container_id is not None and not each.whole_pod)
