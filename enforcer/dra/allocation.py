"""From a claim and its pod to what each container may hold: what the kubelet's Prepare freezes. Pure.

The pod's annotations say what each container wants, what the claim consumed is what all of them can have; where both
disagree nothing is prepared. Raw objects in, as the API server gives them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from enforcer.dra import permission
from enforcer.dra.compute_caps import stated
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.nvml.types import Gpu
from enforcer.quota.from_claims import Object, env_int, parse_int, parse_mib, parse_policy
from enforcer.resourceslices.devices import STATUS_DEVICE
from gpushare import contract, mps_variables
from gpushare.errors import PrepareError, QuantityError
from gpushare.host_access import NOTHING_LISTED, HostAccess
from gpushare.main_container import main_container
from gpushare.peak_usage import INIT, SIDECAR, peak_usage
from gpushare.pod_claims import uses
from gpushare.quantity import format_mib, parse_memory, parse_percent
from gpushare.reasons import Reason
from gpushare.share_annotations import ShareAnnotation, by_container
from gpushare.shared_memory import brings_memory

APP: Final = "app"
_RESCHEDULE: Final = "delete the pod so that it is rescheduled"
_AGAIN: Final = f"the kubelet retries; if this error stays, {_RESCHEDULE}"


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """A container that uses a request of the claim; ``own`` where through the entry that the webhook writes.

    ``granted`` is that request's, one for each of its GPUs.
    """

    raw: Object
    kind: str
    granted: tuple[AllocatedDevice, ...]
    own: bool

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.raw["name"])

    @property
    def request(self) -> str:
        """The request's name."""
        return self.granted[0].request

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of its GPUs."""
        return tuple(str(each.gpu) for each in self.granted)

    @property
    def memory_mib(self) -> int:
        """MiB that were consumed of each of its GPUs."""
        return min(each.memory_mib for each in self.granted)

    @property
    def compute(self) -> int:
        """Percent that were consumed of each of its GPUs."""
        return min(each.compute for each in self.granted)


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A claim, the pod that uses it, and the pod's namespace.

    ``host`` is what of the node its pods may reach; the namespace's own list of paths is added here.
    """

    claim: Object
    pod: Object
    namespace: Object
    host: HostAccess = NOTHING_LISTED


def compute_limits(node: str, ask: PrepareRequest, devices: Mapping[str, Gpu]) -> PreparedClaim:
    """Work out what a claim's containers may hold.

    Args:
        node: this node, also the name of its pool.
        ask: see there.
        devices: this node's GPUs by the name of their device.

    Raises:
        PrepareError: the claim cannot be prepared for this pod; the sentence says why and what to do.
    """
    granted = granted_of(node, ask.claim, devices)
    check_user(node, ask.claim, ask.pod)
    policy = permission.check(ask.claim, ask.pod, ask.namespace, ask.host)
    used = list(_uses(ask, granted))
    _check_used(ask, used, granted)
    limits = _limits(ask.pod, used)
    for use, limit in zip(used, limits, strict=True):
        permission.check_amount(policy, limit, instance=any(devices[each.device].parent for each in use.granted))
    _check_sums(ask, used, limits, granted)
    check_variables(used, limits)
    metadata, pod = ask.claim["metadata"], ask.pod["metadata"]
    return PreparedClaim(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        pod=pod["name"],
        pod_uid=pod["uid"],
        granted=granted,
        limits=limits,
        terms=parse_policy(ask.namespace["metadata"].get("annotations") or {}),
        caps=stated(
            (use.request, env_int(use.raw, contract.MPS_THREAD_PERCENTAGE))
            for use, limit in zip(used, limits, strict=True)
            if limit.compute is None
        ),
        own_shared_memory=tuple(sorted({use.request for use in used if brings_memory(use.raw)})),
        driver_capabilities=permission.driver_capabilities(
            [(use.request, variable(use.raw, contract.NVIDIA_DRIVER_CAPABILITIES)) for use in used], policy
        ),
    )


def reserved_pod(claim: Object) -> Mapping[str, Any]:
    """Name the one pod a claim is reserved for.

    Raises:
        PrepareError: there is none, or there are several.
    """
    users = (claim.get("status") or {}).get("reservedFor") or []
    if len(users) == 1 and users[0].get("resource") == "pods":
        return dict(users[0])
    problem = f"{len(users)} users" if users else "no pod"
    hint = "a share belongs to one pod: give each pod its own claim with a ResourceClaimTemplate"
    raise PrepareError(f"claim {_named(claim)} is reserved for {problem}; {hint}")


def check_user(node: str, claim: Object, pod: Object) -> None:
    """Make sure that this is the pod the claim is reserved for, and that it belongs here.

    Raises:
        PrepareError: it is another.
    """
    user = reserved_pod(claim)
    if pod["metadata"]["uid"] != user["uid"]:
        message = f"claim {_named(claim)} is reserved for pod {user['name']} with UID {user['uid']}, which is gone"
        raise PrepareError(f"{message}; {_AGAIN}", Reason.CLAIM_UNKNOWN)
    if (there := (pod.get("spec") or {}).get("nodeName")) != node:
        message = f"pod {user['name']} runs on {there or 'no node'}, not on this node {node}"
        raise PrepareError(f"{message}; {_AGAIN}", Reason.CLAIM_UNKNOWN)


def granted_of(node: str, claim: Object, devices: Mapping[str, Gpu]) -> tuple[AllocatedDevice, ...]:
    """Read what a claim was allocated of this node's devices.

    Raises:
        PrepareError: nothing, something this node does not have, or something that cannot be limited.
    """
    allocation = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    results = [each for each in allocation.get("results") or [] if each.get("driver") == contract.DRIVER]
    if not results:
        message = (
            f"the scheduler has allocated no device of {contract.DRIVER} to claim {_named(claim)}; wait for "
            "the allocation"
        )
        raise PrepareError(message, Reason.CLAIM_UNKNOWN)
    granted = tuple(_granted(node, each, devices) for each in results)
    for several in of_requests(granted).values():
        _check_different(claim, several, devices)
    return granted


def of_requests(granted: Sequence[AllocatedDevice]) -> dict[str, tuple[AllocatedDevice, ...]]:
    """Sort what was granted by request, in the order it came."""
    found: dict[str, tuple[AllocatedDevice, ...]] = {}
    for each in granted:
        found[each.request] = (*found.get(each.request, ()), each)
    return found


def _check_different(claim: Object, several: Sequence[AllocatedDevice], devices: Mapping[str, Gpu]) -> None:
    """Refuse several devices of one request that a process cannot use together."""
    what = f"request {several[0].request} of claim {_named(claim)}"
    if len({each.gpu for each in several}) < len(several):
        hint = f"add the constraint distinctAttribute: {contract.ATTRIBUTE_UUID}"
        raise PrepareError(f"{what} got the same device {len(several)} times; {hint}")
    if len(several) > 1 and any(each.gpu is None or devices[each.device].parent for each in several):
        raise PrepareError(f"{what} got several devices that are not whole GPUs; ask for one device in each request")


def _granted(node: str, result: Object, devices: Mapping[str, Gpu]) -> AllocatedDevice:
    request, pool, device = result["request"].partition("/")[0], result["pool"], result["device"]
    if result.get("adminAccess"):
        raise PrepareError(f"request {request} sets adminAccess, which the driver does not support; remove adminAccess")
    if pool == node and device == STATUS_DEVICE:
        return AllocatedDevice(request=request, pool=pool, device=device, share_id=result.get("shareID"))
    if pool != node or device not in devices:
        known = ", ".join(sorted(devices)) or "none"
        message = f"request {request} got device {device} of pool {pool}, but node {node} has only the devices: {known}"
        raise PrepareError(f"{message}; {_RESCHEDULE}", Reason.CLAIM_UNKNOWN)
    gpu, consumed = devices[device], result.get("consumedCapacity") or {}
    memory = parse_mib(consumed.get(contract.CAPACITY_MEMORY))
    if gpu.parent is not None:
        memory = gpu.memory_mib - gpu.reserved_mib  # a MIG instance has one user, who has all of it
    if not memory:
        raise PrepareError(
            f"request {request} reserves no {contract.CAPACITY_MEMORY} of {device}; write an amount in its capacity"
        )
    return AllocatedDevice(
        request=request, pool=pool, device=device, share_id=result.get("shareID"), gpu=gpu.uuid, memory_mib=memory,
        compute=parse_int(consumed.get(contract.CAPACITY_COMPUTE)) or 0, device_mib=gpu.memory_mib,
    )  # fmt: skip


def containers(pod: Object) -> list[tuple[Object, str]]:
    """List a pod's containers with their kinds, in the order of their start; ephemeral ones cannot use claims."""
    spec = pod.get("spec") or {}
    first = [
        (each, SIDECAR if each.get("restartPolicy") == "Always" else INIT) for each in spec.get("initContainers") or []
    ]
    return [*first, *((each, APP) for each in spec.get("containers") or [])]


def _uses(ask: PrepareRequest, granted: Sequence[AllocatedDevice]) -> Iterator[ContainerUse]:
    gpus = of_requests([each for each in granted if each.gpu is not None])
    found: dict[str, list[tuple[str, bool]]] = {}
    for use in uses(ask.pod):
        if use.claim == ask.claim["metadata"]["name"]:
            requests = [request for request in ([use.request] if use.request else gpus) if request in gpus]
            found.setdefault(use.container, []).extend((each, use.entry == contract.CLAIM) for each in requests)
    for raw, kind in containers(ask.pod):
        used = found.get(raw["name"], [])
        if len(used) > 1:
            asks = ", ".join(request for request, _ in used)
            message = f"container {raw['name']} uses {len(used)} requests ({asks}) of claim {_named(ask.claim)}"
            raise PrepareError(f"{message}; a container can use one request: name one request in its resources.claims")
        yield from (ContainerUse(raw, kind, gpus[request], own) for request, own in used)


def _check_used(ask: PrepareRequest, used: Sequence[ContainerUse], granted: Sequence[AllocatedDevice]) -> None:
    """Refuse GPUs that no container uses: nobody would know what its quota is."""
    if not used and any(each.gpu is not None for each in granted):
        hint = "name the claim in resources.claims of a container"
        raise PrepareError(f"claim {_named(ask.claim)} holds a GPU that no container of the pod uses; {hint}")


def _limits(pod: Object, uses: Sequence[ContainerUse]) -> tuple[ContainerLimit, ...]:
    annotations = pod["metadata"].get("annotations") or {}
    apps = [raw for raw, kind in containers(pod) if kind == APP]
    asked = by_container(annotations, main_container(annotations, apps))
    memory, most, compute = asked[contract.MEMORY], asked[contract.MEMORY_LIMIT], asked[contract.COMPUTE]
    return tuple(
        ContainerLimit(
            container=use.name,
            request=use.request,
            memory_mib=_memory(use, memory.get(use.name)),
            compute=_compute(use, compute.get(use.name)),
            limit_mib=None if (wanted := most.get(use.name)) is None else _read(wanted, parse_memory),
        )
        for use in uses
    )


def _memory(use: ContainerUse, wanted: ShareAnnotation | None) -> int:
    """An annotation, else what the webhook wrote into the container (a namespace's default), else all of the request.

    A namespace's default is not read again: it may have changed since the claim was made.
    """
    if wanted is not None:
        return _read(wanted, parse_memory)
    written = env_int(use.raw, contract.MEMORY_MIB) if use.own else None
    return written or use.memory_mib


def _compute(use: ContainerUse, wanted: ShareAnnotation | None) -> int | None:
    if wanted is not None:
        return _read(wanted, parse_percent)
    if use.own and env_int(use.raw, contract.MEMORY_MIB) is not None:
        # The webhook was here; a percentage that is not ours can only lower what the container gets.
        return _least(env_int(use.raw, contract.MPS_THREAD_PERCENTAGE), use.compute)
    return use.compute or None


def _least(written: int | None, compute: int) -> int | None:
    return min(written, compute) if written and compute else None


def _read(wanted: ShareAnnotation, parse: Callable[[object], int]) -> int:
    try:
        return parse(wanted.value)
    except QuantityError as error:
        raise PrepareError(f"metadata.annotations[{wanted.key:.120}]: {error.message}", error.reason) from error


def _check_sums(
    ask: PrepareRequest,
    uses: Sequence[ContainerUse],
    limits: Sequence[ContainerLimit],
    granted: Sequence[AllocatedDevice],
) -> None:
    for gpu in sorted({gpu for use in uses for gpu in use.gpus}):
        here = [(use, limit) for use, limit in zip(uses, limits, strict=True) if gpu in use.gpus]
        memory, compute = peak_usage([(use.kind, limit.memory_mib, limit.compute or 0) for use, limit in here])
        had = [each for each in granted if each.gpu == gpu]
        consumed, percent = sum(each.memory_mib for each in had), sum(each.compute for each in had)
        claim = f"claim {_named(ask.claim)}"
        if memory > consumed:
            shares = ", ".join(f"{limit.container} {format_mib(limit.memory_mib)}" for _, limit in here)
            problem = (
                f"hold {format_mib(memory)} of one GPU at once ({shares}), but {claim} reserves {format_mib(consumed)}"
            )
            raise _mismatch(ask.pod, problem, annotated=any(use.own for use, _ in here))
        if compute > percent and any(limit.compute for _, limit in here):
            shares = ", ".join(f"{limit.container} {limit.compute or 0}%" for _, limit in here)
            problem = f"use {compute}% of one GPU at once ({shares}), but {claim} reserves {percent}%"
            raise _mismatch(ask.pod, problem, annotated=any(use.own for use, _ in here))


def _mismatch(pod: Object, problem: str, *, annotated: bool) -> PrepareError:
    hint = (
        "delete the pod and create it again, so that gpu-share makes its claim from the annotations"
        if annotated
        else "reserve more in the claim, or give each container its own request"
    )
    message = f"the containers of pod {pod['metadata']['name']} may {problem}; {hint}"
    return PrepareError(message, Reason.CLAIM_MISMATCH)


def check_variables(uses: Sequence[ContainerUse], limits: Sequence[ContainerLimit]) -> None:
    """Where containers with different limits use one request, each must state its own.

    CDI writes the same variables into all of them, so there it can only be silent about what differs.

    Raises:
        PrepareError: one of them does not.
    """
    for use, limit in zip(uses, limits, strict=True):
        beside = [each for each in limits if each.request == limit.request]
        memory = limit.memory_mib if len({each.memory_mib for each in beside}) > 1 else None
        most = limit.most_mib if len({each.most_mib for each in beside}) > 1 else None
        percent = limit.compute if len({each.compute for each in beside}) > 1 else None
        wanted = mps_variables.limits(most, percent, len(use.gpus))
        wanted |= {} if memory is None else {contract.MEMORY_MIB: str(memory)}
        for name, value in wanted.items():
            if variable(use.raw, name) != value:
                message = f"container {use.name} shares request {limit.request} with containers that have other limits"
                hint = f"set {name}={value} in its env, or give it its own request"
                raise PrepareError(f"{message}; {hint}", Reason.CLAIM_MISMATCH)


def variable(container: Object, name: str) -> str | None:
    """Read a literal variable; the last entry of a name is the one that counts."""
    entries = [entry for entry in container.get("env") or [] if entry.get("name") == name]
    value = entries[-1].get("value") if entries else None
    return value if isinstance(value, str) else None


def still_valid(prepared: PreparedClaim, node: str, claim: Object, devices: Mapping[str, Gpu]) -> bool:
    """Tell whether a claim is still what it was when it was prepared: its pod uses it, same devices and amounts.

    Other pods may have joined since; that must not keep its own pod from starting again.
    """
    users = (claim.get("status") or {}).get("reservedFor") or []
    try:
        mine = any(user.get("uid") == prepared.pod_uid for user in users)
        return mine and granted_of(node, claim, devices) == prepared.shared_by({}).granted
    except PrepareError:
        return False


def _named(claim: Object) -> str:
    return str(claim["metadata"]["name"])
