"""Quotas from claims of NVIDIA's DRA driver, which accounts for shares of a GPU and enforces none. Pure.

A result of a claim gives a quota if all of it can be read; what cannot be read gives a finding, and no quota to any
container that uses it. Who writes what is read:

- ``status.allocation`` of a claim: the scheduler. ``status.reservedFor``: the scheduler and the claim controller.
- ResourceSlices: the driver's plugin on the node. The UUIDs in there count only if NVML lists the device.
- ``spec`` of a pod: its creator; nobody changes its containers and claims later.
- ``status.resourceClaimStatuses`` and ``status.extendedResourceClaimStatus`` of a pod: the claim controller and the
  scheduler, and anybody with the right to ``pods/status``. They are read once and kept, and only count if the claim
  itself is reserved for the pod.

Which processes are a container's is not read here: ``enforcer.attribution.container_names`` has it from the node.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Final

from enforcer.nvml.types import MIB, Gpu
from enforcer.quota.foreign_objects import DRIVER, Device, devices_of_pools, results_of
from enforcer.quota.from_claims import Terms, parse_bytes
from enforcer.quota.kept_fields import MOST_USES
from enforcer.quota.types import OnExceed, Quota
from gpushare.pod_claims import Use, claim_names, containers, uses
from gpushare.raw_objects import Object, mapping, objects, text

_NOT_OPTED_IN: Final = Terms(on_exceed=OnExceed.WARN)
DeviceKey = tuple[str, str, str]
"""A claim's UID, a pool, and the name of a device in there."""


class Cause(StrEnum):
    """Why a claim gives no quota, or not to each container that uses it."""

    ADMIN = "adminAccess"
    AMOUNT = "amount"
    BESIDE = "beside"
    CHANGED = "changed"
    DEVICE = "device"
    EXCLUSIVE = "exclusive"
    MANY = "many"
    NVML = "nvml"
    OWN = "own"
    SHARED = "shared"
    TYPE = "type"
    USERS = "users"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim that gives no quota, or not to each container that uses it, and why."""

    namespace: str
    claim: str
    cause: Cause
    why: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.claim} of {DRIVER}: {self.why}"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was read once in this boot and still counts.

    ``devices`` are those of results, also of results without a quota. ``uses`` has, by pod UID, which container uses
    which claim.
    """

    devices: Mapping[DeviceKey, Device] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What there is: raw objects, as ``kept_claim`` and ``kept_pod`` leave them.

    ``gpus`` is NVML's list of GPUs and MIG devices, ``terms`` the policy of each namespace that opted in, and ``own``
    pod UID and GPU of each share of our own driver.
    """

    node: str
    claims: Iterable[Object]
    slices: Iterable[Object]
    pods: Iterable[Object]
    gpus: Sequence[Gpu]
    terms: Mapping[str, Terms] = field(default_factory=dict)
    own: Collection[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The quotas, one finding for each claim that is not wholly in them, and what is to be kept."""

    quotas: tuple[Quota, ...]
    findings: tuple[Finding, ...]
    kept: Kept


class _RejectedError(Exception):
    """A result gives no quota. ``gpu`` is the only GPU that the containers which use it cannot have one on."""

    def __init__(self, cause: Cause, why: str, gpu: str | None = None) -> None:
        super().__init__(why)
        self.cause, self.why, self.gpu = cause, why, gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One result of a claim, and the containers that use it."""

    claim: Object
    key: DeviceKey
    users: tuple[str, ...]
    device: Device | None = None
    mib: int = 0
    rejected: _RejectedError | None = None

    @property
    def gpu(self) -> str | None:
        """The GPU in question; ``None``: that is not known."""
        if self.rejected is not None:
            return self.rejected.gpu
        return None if self.device is None else self.device.uuid


def foreign_quotas(seen: Seen, kept: Kept) -> Outcome:
    """Work out the quotas, one for each container and GPU, from what there is and what was kept before."""
    claims = {(_namespace(each), _name(each)): each for each in seen.claims}
    world = _World(seen, kept, {each.uuid: each for each in seen.gpus}, devices_of_pools(seen.node, seen.slices))
    quotas: list[Quota] = []
    findings: dict[str, Finding] = {}
    devices: dict[DeviceKey, Device] = {}
    used: dict[str, tuple[Use, ...]] = {}
    for pod in (each for each in seen.pods if text(mapping(each, "spec"), "nodeName") == seen.node):
        reading = _read_pod(pod, claims, world)
        quotas += _quotas(reading, seen.terms.get(_namespace(pod), _NOT_OPTED_IN))
        for found in _findings(reading):
            findings.setdefault(found[0], found[1])
        devices |= {each.key: first for each in reading.shares if (first := _first(each, kept)) is not None}
        if reading.shares and (reading.settled or _uid(pod) in kept.uses):
            used[_uid(pod)] = reading.uses
    ordered = sorted(quotas, key=lambda each: (each.pod_uid, each.container, each.gpu))
    return Outcome(tuple(ordered), tuple(findings.values()), Kept(devices, used))


@dataclass(frozen=True, slots=True)
class _World:
    seen: Seen
    kept: Kept
    gpus: Mapping[str, Gpu]
    pools: Mapping[str, Mapping[str, Device | None]]


@dataclass(frozen=True, slots=True)
class _Reading:
    pod: Object
    uses: tuple[Use, ...]
    shares: Sequence[_Share]
    unseen: frozenset[str]
    """Claims of the pod that are not known to be allocated, so that nobody knows of what."""

    @property
    def settled(self) -> bool:
        """Whether all claims of the pod are known and its own."""
        return not self.unseen and all(_is_reserved(each.claim, self.pod) for each in self.shares)

    def blocker(self, container: str, gpu: str) -> str:
        """Name a claim by which a container may hold more of a GPU than is known; empty where there is none."""
        unseen = (each.claim for each in self.uses if each.container == container and each.claim in self.unseen)
        rejected = (
            _name(each.claim)
            for each in self.shares
            if each.rejected is not None and container in each.users and each.gpu in {None, gpu}
        )
        return next(chain(unseen, rejected), "")


def _read_pod(pod: Object, claims: Mapping[tuple[str, str], Object], world: _World) -> _Reading:
    kept = world.kept.uses.get(_uid(pod))
    used = _all_uses(pod) if kept is None else kept
    names = dict.fromkeys([*(each.claim for each in used), *claim_names(pod)])
    found = {name: claims.get((_namespace(pod), name)) for name in names}
    shares = [
        _share(pod, claim, result, used, world)
        for claim in found.values()
        if claim is not None
        for result in results_of(claim)
    ]
    return _Reading(pod, used, shares, frozenset(name for name, claim in found.items() if claim is None))


def _all_uses(pod: Object) -> tuple[Use, ...]:
    """Find which container uses which claim; an entry behind which no claim stands counts as one that is not known."""
    found = tuple(uses(pod))
    known = {(each.container, each.entry) for each in found}
    named = [
        (text(container, "name"), text(each, "name"))
        for container in containers(pod)
        for each in objects(mapping(container, "resources"), "claims")
    ]
    missing = dict.fromkeys(each for each in named if each not in known)
    return (*found, *(Use(container, f"(entry {entry})", "", entry) for container, entry in missing))


def _share(pod: Object, claim: Object, result: Object, used: Sequence[Use], world: _World) -> _Share:
    key = _uid(claim), text(result, "pool"), text(result, "device")
    request = text(result, "request").partition("/")[0]
    mine = [each.container for each in used if each.claim == _name(claim) and each.request in {"", request}]
    share = _Share(claim=claim, key=key, users=tuple(dict.fromkeys(mine)))
    try:
        _check_claim(pod, claim, result, used)
        device = _device(key, world)
        share = replace(share, device=device)
        _check_device(key[2], device, world.gpus.get(device.uuid))
        mib = _amount(result, device)
        _check_users(pod, share.users, request, device.uuid)
        _check_own(pod, device.uuid, world.seen.own)
    except _RejectedError as rejected:
        return replace(share, rejected=rejected)
    return replace(share, mib=mib)


def _check_claim(pod: Object, claim: Object, result: Object, used: Sequence[Use]) -> None:
    if result.get("adminAccess"):
        raise _RejectedError(Cause.ADMIN, f"request {text(result, 'request')} has adminAccess")
    if not _is_reserved(claim, pod):
        why = f"it is not reserved for only pod {_name(pod)}; give each pod its own claim"
        raise _RejectedError(Cause.SHARED, why)
    if max(len(used), len(objects(mapping(pod, "spec"), "resourceClaims"))) >= MOST_USES:
        raise _RejectedError(Cause.MANY, f"pod {_name(pod)} uses {MOST_USES} claims or more; use fewer claims")


def _device(key: DeviceKey, world: _World) -> Device:
    """Return the device of a result: as the slices have it now, or as they had it while the pool is not complete."""
    _, pool, name = key
    first, now = world.kept.devices.get(key), world.pools.get(pool, {}).get(name)
    device = now or first
    if device is None:
        why = f"pool {pool} is not complete, or does not have one device {name} on this node"
        raise _RejectedError(Cause.DEVICE, why)
    if first is not None and device.uuid != first.uuid:
        why = f"device {name} of pool {pool} was {first.uuid} and is {device.uuid} now; create the pod again"
        raise _RejectedError(Cause.CHANGED, why)
    return device


def _check_device(name: str, device: Device, gpu: Gpu | None) -> None:
    if device.kind not in {"gpu", "mig"} or not device.uuid:
        raise _RejectedError(Cause.TYPE, f"device {name} has type {device.kind!r:.80}, not gpu or mig, or no uuid")
    if not device.shareable:
        why = f"device {name} does not allow multiple allocations: the claim has the whole device"
        raise _RejectedError(Cause.EXCLUSIVE, why, device.uuid)
    parent = device.parent if device.kind == "mig" else ""
    if gpu is None or (gpu.parent or "") != parent or bool(parent) != (device.kind == "mig"):
        why = f"NVML lists no {device.kind} device {device.uuid}{f' of GPU {parent}' if parent else ''}"
        raise _RejectedError(Cause.NVML, why, device.uuid)


def _amount(result: Object, device: Device) -> int:
    """Return the MiB that a result consumed: exact, above zero, below the device's capacity."""
    written = mapping(result, "consumedCapacity").get("memory")
    amount = parse_bytes(written)
    if amount is None or amount % MIB or device.capacity is None:
        why = (
            f"its consumedCapacity.memory {written!r:.80} is not a number of MiB, or the device has no memory capacity"
        )
        raise _RejectedError(Cause.AMOUNT, why, device.uuid)
    if amount == 0 or amount >= device.capacity:
        why = f"its consumedCapacity.memory is {written}: it limits nothing"
        raise _RejectedError(Cause.WHOLE, why, device.uuid)
    return amount // MIB


def _check_users(pod: Object, users: Sequence[str], request: str, gpu: str) -> None:
    spec = mapping(pod, "spec")
    init = objects(spec, "initContainers")
    lasting = {text(each, "name") for each in objects(spec, "containers")}
    lasting |= {text(each, "name") for each in init if each.get("restartPolicy") == "Always"}
    known = lasting | {text(each, "name") for each in init}
    if len(lasting & {*users}) != 1 or not known.issuperset(users):
        named = ", ".join(users) or "none"
        why = f"request {request} is for one container, besides init containers, and is used by: {named}; split it"
        raise _RejectedError(Cause.USERS, why, gpu)


def _check_own(pod: Object, gpu: str, own: Collection[tuple[str, str]]) -> None:
    if (_uid(pod), gpu) in own:
        raise _RejectedError(Cause.OWN, f"pod {_name(pod)} has a share of gpu-share on the same device {gpu}", gpu)


def _quotas(reading: _Reading, terms: Terms) -> Iterator[Quota]:
    sums: dict[tuple[str, str], list[_Share]] = defaultdict(list)
    for share in reading.shares:
        for container in share.users if share.gpu and share.rejected is None else ():
            if not reading.blocker(container, share.gpu or ""):
                sums[container, share.gpu or ""].append(share)
    for (container, gpu), shares in sums.items():
        mib = sum(each.mib for each in shares)
        yield Quota(
            claim_uid=_uid(shares[0].claim), namespace=_namespace(reading.pod), pod=_name(reading.pod),
            pod_uid=_uid(reading.pod), container=container, container_id=None, gpu=gpu, memory_mib=mib,
            on_exceed=terms.on_exceed, grace_seconds=terms.grace_seconds, tolerance_mib=terms.tolerance(mib),
        )  # fmt: skip


def _findings(reading: _Reading) -> Iterator[tuple[str, Finding]]:
    """Yield by claim UID, of a claim with several the first, what stands against quotas of a pod."""
    for share in reading.shares:
        if (against := _against(reading, share)) is not None:
            cause, why = against
            where, claim = _namespace(reading.pod), _name(share.claim)
            yield _uid(share.claim), Finding(namespace=where, claim=claim, cause=cause, why=why)


def _against(reading: _Reading, share: _Share) -> tuple[Cause, str] | None:
    if share.rejected is not None:
        return share.rejected.cause, share.rejected.why
    blocked = [(each, by) for each in share.users if (by := reading.blocker(each, share.gpu or ""))]
    if not blocked:
        return None
    return Cause.BESIDE, f"container {blocked[0][0]} also uses claim {blocked[0][1]}, which cannot be read"


def _first(share: _Share, kept: Kept) -> Device | None:
    """Return the device to keep for a result: the one that it had when it was first read."""
    return kept.devices.get(share.key) or share.device


def _is_reserved(claim: Object, pod: Object) -> bool:
    """Tell whether a claim is reserved for this pod and nobody else."""
    users = objects(mapping(claim, "status"), "reservedFor")
    mine = {"apiGroup": "", "resource": "pods", "name": _name(pod), "uid": _uid(pod)}
    return len(users) == 1 and {key: text(users[0], key) for key in mine} == mine


def _uid(item: Object) -> str:
    return text(mapping(item, "metadata"), "uid")


def _name(item: Object) -> str:
    return text(mapping(item, "metadata"), "name")


def _namespace(item: Object) -> str:
    return text(mapping(item, "metadata"), "namespace")
