"""Build a node's ResourceSlices from its GPUs: which are published, with what capacity, in which order. Pure.

The stock scheduler takes the first device that fits, so the order of devices is the policy: fullest first packs,
emptiest first spreads. Everything here is plain data; ``enforcer.resourceslices.publisher`` writes it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Final, TypeVar

from enforcer.nvml.device_health import Effect, GpuConditions
from enforcer.nvml.types import Gpu
from enforcer.quota.sharing_mode import SharingModes
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import ConfigError
from gpushare.quantity import DEFAULT_MIN_MIB, WHOLE_GPU_PERCENT
from gpushare.reasons import Reason

Object = dict[str, Any]
T = TypeVar("T")

MAX_DEVICES: Final = 64
"""Devices a slice may hold as soon as one of them has a taint, which any of ours may get."""
MAX_STRING: Final = 64
"""Longest string attribute the API server takes."""
DEFAULT_CONTEXT_MIB: Final = 1024
"""What the MPS server itself holds on a GPU, as NVIDIA's own gpu-fractioning counts it."""
SHAREABLE_SINCE: Final = (7, 0)
"""Volta: older GPUs have no memory limit per MPS client."""
STATUS_DEVICE: Final = "status"
MIG_HINT: Final = f"set the node label {contract.NODE_MODE}=mig to share MIG instances"
LIMIT_BACKEND: Final = "limitBackend"
MAX_LABEL: Final = 63
ARCHITECTURES: Final = (
    ((12, 0), "Blackwell"), ((10, 0), "Blackwell"), ((9, 0), "Hopper"), ((8, 9), "Ada Lovelace"), ((8, 0), "Ampere"),
    ((7, 5), "Turing"), ((7, 0), "Volta"), ((6, 0), "Pascal"), ((5, 0), "Maxwell"),
)  # fmt: skip


class Order(StrEnum):
    """Which GPU of a node is offered first."""

    BINPACK = "binpack"
    SPREAD = "spread"


REORDER_TOLERANCE: Final = {Order.BINPACK: 0.25, Order.SPREAD: 0.0}
"""How much fuller, as a share of a GPU, one may be than another that it should not be listed after (or before).

Each write of a slice has every scheduler look at all its waiting pods again. Packing is as good with this as with an
order that is always right (docs/operators/capacity.md); spreading is not, for there the first GPU is filled until it
is not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryPolicy:
    """What the operator decides about offering GPUs; memory in MiB. ``mode`` is a node's that has no label for it.

    ``compute`` is the percent of each GPU's SMs that all containers together may ask for; one may ask for at most 100.
    """

    order: Order = Order.BINPACK
    mode: Mode = Mode.MPS
    context_mib: int = DEFAULT_CONTEXT_MIB
    min_memory_mib: int = DEFAULT_MIN_MIB
    clients: int = contract.MAX_CLIENTS
    compute: int = WHOLE_GPU_PERCENT
    health_taint: Effect = Effect.NO_SCHEDULE


@dataclass(frozen=True, slots=True)
class ExcludedGpu:
    """A GPU that is not offered, and the sentence that says why."""

    uuid: str
    why: str


@dataclass(frozen=True, slots=True)
class DeviceList:
    """What a node offers: devices in order of choice, and what it leaves out."""

    devices: tuple[Object, ...]
    left_out: tuple[ExcludedGpu, ...]


def shareable_gpus(gpus: Sequence[Gpu], node: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """Keep the GPUs that the node's object offers: none without its label, else all or those its annotation names.

    Raises:
        ConfigError: the annotation names no GPU of this node.
    """
    metadata = node["metadata"]
    if (metadata.get("labels") or {}).get(contract.NODE_LABEL) != "true":
        return ()
    return select_gpus(gpus, (metadata.get("annotations") or {}).get(contract.NODE_GPUS))


def select_gpus(gpus: Sequence[Gpu], wanted: str | None) -> tuple[Gpu, ...]:
    """Keep the GPUs an operator named in the node annotation ``gpu-share.io/gpus``: UUIDs or indices; ``None``: all.

    The name of a GPU includes its MIG instances.

    Raises:
        ConfigError: an entry names no GPU of this node, or there is no entry.
    """
    if wanted is None:
        return tuple(gpus)
    by_name = {str(gpu.index): gpu for gpu in gpus} | {gpu.uuid: gpu for gpu in gpus}
    entries = [entry.strip() for entry in wanted.split(",") if entry.strip()]
    unknown = [entry for entry in entries if entry not in by_name]
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
    if unknown or not entries:
        problem = f"{unknown[0]!r:.80} is not a GPU of this node" if unknown else f"{wanted!r:.80} lists no GPU"
        raise ConfigError(
            f"node annotation {contract.NODE_GPUS}: {problem}; write one or more of {known}, or remove the annotation"
        )
    chosen = {by_name[entry].uuid for entry in entries}
    return tuple(gpu for gpu in gpus if chosen & {gpu.uuid, gpu.parent})


def capacity_mib(gpu: Gpu, policy: InventoryPolicy, foreign_mib: int = 0, mode: Mode | None = Mode.MPS) -> int:
    """MiB that shares can have: without the driver's reserve, the MPS server's context, and foreign processes' use."""
    context = policy.context_mib if mode is Mode.MPS else 0
    return max(0, gpu.memory_mib - gpu.reserved_mib - context - foreign_mib)


def build_devices(
    gpus: Iterable[Gpu],
    policy: InventoryPolicy,
    *,
    foreign_mib: Mapping[str, int] | None = None,
    reserved_mib: Mapping[str, int] | None = None,
    standing: GpuConditions | None = None,
    ways: SharingModes | None = None,
    before: Sequence[str] = (),
) -> DeviceList:
    """Turn GPUs into the devices of a pool, in order of choice, the status device last.

    Args:
        gpus: those to offer, already narrowed.
        policy: the operator's.
        foreign_mib: by UUID, memory of processes without a live claim; it is taken off the capacity.
        reserved_mib: by UUID, memory that claims have been allocated; it decides the order alone.
        standing: which are contended, and excluded, and which are unhealthy, and tainted.
        ways: how they are shared; by default as the policy says.
        before: names of the devices as they were offered last; their order stays while it will do.
    """
    foreign, reserved, known = foreign_mib or {}, reserved_mib or {}, standing or GpuConditions()
    how = ways or SharingModes(policy.mode)
    there = tuple(gpus)
    cut = {gpu.parent for gpu in there} if how.wanted is Mode.MIG else set()
    reasons = {
        gpu: _objection(gpu, policy, foreign.get(gpu.uuid, 0), known, how) for gpu in there if gpu.uuid not in cut
    }
    shared = [gpu for gpu, why in reasons.items() if why is None]
    ranked = _in_order(shared, policy, reserved, before)
    offered = (_offered(gpu, policy, foreign.get(gpu.uuid, 0), known, how.of(gpu.uuid)) for gpu in ranked)
    devices = (*offered, _status_device())
    return DeviceList(devices, tuple(ExcludedGpu(gpu.uuid, why) for gpu, why in reasons.items() if why is not None))


def resource_slices(
    node: str, devices: Sequence[Object], node_uid: str | None = None, left_out: Sequence[ExcludedGpu] = ()
) -> tuple[Object, ...]:
    """Lay devices out over as many ResourceSlices as they need, one at least; generation 1, the writer raises it.

    Without devices the one slice is empty. It stays, because it bears the head of the audit log and the report.

    Args:
        node: name of the node, also of the pool.
        devices: in order of choice; the status device is laid out first.
        node_uid: of the Node object, so that the slices go when it goes.
        left_out: what is not offered, noted in an annotation of each slice.
    """
    noted = {contract.EXCLUDED_GPUS: json.dumps({each.uuid: each.why for each in left_out})} if left_out else {}
    more = (
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}]} if node_uid else {}
    )
    # The scheduler tries devices in order, on each node, and every sharing pod wants the status device.
    laid = sorted(devices, key=lambda each: each["name"] != STATUS_DEVICE)
    chunks = [laid[at : at + MAX_DEVICES] for at in range(0, len(laid), MAX_DEVICES)] or [[]]
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(chunks)}
    return tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-{contract.DRIVER}-{number}", "annotations": noted, **more},
            "spec": {"driver": contract.DRIVER, "nodeName": node, "pool": dict(pool), "devices": list(chunk)},
        }
        for number, chunk in enumerate(chunks)
    )


def device_name(gpu: Gpu) -> str:
    """Name a GPU's device in its pool: by its UUID, as a DNS label, for an index may come to mean another card."""
    label = "".join(each if each.isascii() and each.isalnum() else "-" for each in gpu.uuid.lower())
    return label[:MAX_LABEL].strip("-")


def quantity(mib: int) -> str:
    """Write MiB as the API server writes it back: ``16Gi``, ``15872Mi``, ``0``."""
    for power, suffix in ((2, "Ti"), (1, "Gi")):
        if mib and mib % 1024**power == 0:
            return f"{mib // 1024**power}{suffix}"
    return f"{mib}Mi" if mib else "0"


def version(text: str) -> str:
    """Write a version the way semantic versions are, in three parts without leading zeros: ``535.309.1``."""
    parts = [int(part) if part.isdecimal() else 0 for part in text.split(".")[:3]]
    return ".".join(map(str, parts + [0] * (3 - len(parts))))


def architecture(compute_capability: tuple[int, int]) -> str:
    """NVIDIA's name for a compute capability; ``Unknown`` for what is older than Maxwell."""
    return next((name for since, name in ARCHITECTURES if compute_capability >= since), "Unknown")


def _objection(
    gpu: Gpu, policy: InventoryPolicy, foreign_mib: int, standing: GpuConditions, ways: SharingModes
) -> str | None:
    """Say why a GPU is not shared, or ``None``."""
    if standing.objection is not None:
        return standing.objection
    contended = of_gpu(standing.contended, gpu)
    if contended is not None:
        return f"{Reason.CONTENDED}: {contended}"
    if gpu.mig_enabled:
        return (
            "the GPU is in MIG mode but has no instance"
            if ways.wanted is Mode.MIG
            else f"the GPU is in MIG mode; {MIG_HINT}"
        )
    if (changing := ways.objection(gpu.uuid)) is not None:
        return changing
    objection = _objection_to_instance if gpu.parent is not None else _objection_to_gpu
    return objection(gpu, policy, foreign_mib, ways.of(gpu.uuid))


def _objection_to_gpu(gpu: Gpu, policy: InventoryPolicy, foreign_mib: int, mode: Mode | None) -> str | None:
    if mode is Mode.MPS and gpu.compute_capability < SHAREABLE_SINCE:
        return f"the GPU is a {architecture(gpu.compute_capability)}; sharing through MPS needs Volta or newer"
    left = capacity_mib(gpu, policy, foreign_mib, mode)
    if left <= policy.min_memory_mib:
        # The API server refuses a capacity that has no room for one step above the smallest share.
        return f"{left} MiB are free for shares, but shares need more than the minimum of {policy.min_memory_mib} MiB"
    return None


def _objection_to_instance(gpu: Gpu, _: InventoryPolicy, foreign_mib: int, mode: Mode | None) -> str | None:
    if mode is not Mode.MIG:
        return f"the device is a MIG instance; {MIG_HINT}"
    if not gpu.profile:
        return "the driver does not report the profile of the MIG instance, so no claim could select it"
    if foreign_mib:
        return f"processes without a share use {foreign_mib} MiB of the MIG instance"
    return None


def of_gpu(known: Mapping[str, T], gpu: Gpu) -> T | None:
    """Return what is known of a GPU; of a MIG instance also what is of the GPU it was cut from."""
    return known.get(gpu.uuid, known.get(gpu.parent or ""))


def _offered(gpu: Gpu, policy: InventoryPolicy, foreign_mib: int, standing: GpuConditions, mode: Mode | None) -> Object:
    device = _instance(gpu, mode) if gpu.parent is not None else _device(gpu, policy, foreign_mib, mode)
    backend = standing.backends.get(gpu.uuid)
    limits = {} if backend is None else {LIMIT_BACKEND: {"string": backend}}
    return device | {"attributes": device["attributes"] | limits} | _taints(gpu, policy, standing)


def _taints(gpu: Gpu, policy: InventoryPolicy, standing: GpuConditions) -> Object:
    """Return the taint of an unhealthy GPU; an empty list says that there is to be none."""
    unhealthy = of_gpu(standing.unhealthy, gpu)
    if unhealthy is None or policy.health_taint is Effect.NONE:
        return {"taints": []}
    return {"taints": [{"key": contract.UNHEALTHY, "value": str(unhealthy), "effect": str(policy.health_taint)}]}


def order_is_acceptable(gpus: Sequence[Gpu], policy: InventoryPolicy, reserved: Mapping[str, int]) -> bool:
    """Say whether GPUs may stay in this order, given the MiB in use of each, by UUID."""
    ranks = [_rank(gpu, policy, reserved) for gpu in gpus]
    return all(
        most - rank <= REORDER_TOLERANCE[policy.order] for most, rank in zip(accumulate(ranks, max), ranks, strict=True)
    )


def in_listed_order(gpus: Iterable[Gpu], names: Sequence[str]) -> list[Gpu]:
    """Return those GPUs whose devices are named, in the order of the names."""
    by_name = {device_name(gpu): gpu for gpu in gpus}
    return [by_name[name] for name in names if name in by_name]


def _in_order(
    gpus: Sequence[Gpu], policy: InventoryPolicy, reserved: Mapping[str, int], before: Sequence[str]
) -> list[Gpu]:
    """Sort GPUs by preference, unless they are still in the order they had, or nearly."""
    standing = in_listed_order(gpus, before)
    if len(standing) == len(gpus) and order_is_acceptable(standing, policy, reserved):
        return standing
    return sorted(gpus, key=lambda gpu: (_rank(gpu, policy, reserved), gpu.index))


def _rank(gpu: Gpu, policy: InventoryPolicy, reserved: Mapping[str, int]) -> float:
    return reserved.get(gpu.uuid, 0) / max(1, capacity_mib(gpu, policy)) * (-1 if policy.order is Order.BINPACK else 1)


def _device(gpu: Gpu, policy: InventoryPolicy, foreign_mib: int, mode: Mode | None) -> Object:
    memory = quantity(capacity_mib(gpu, policy, foreign_mib, mode))
    smallest = {"min": quantity(policy.min_memory_mib), "step": "1Mi"}
    one = {"default": "1", "validValues": ["1"]}
    # The number of clients is a limit of an MPS server, and a GPU that is time-sliced has none.
    clients = {contract.CAPACITY_CLIENTS: {"value": str(policy.clients), "requestPolicy": one}}
    return {
        "name": device_name(gpu),
        "allowMultipleAllocations": True,
        "attributes": _attributes(gpu, mode),
        "capacity": {
            contract.CAPACITY_MEMORY: {"value": memory, "requestPolicy": {"default": memory, "validRange": smallest}},
            contract.CAPACITY_COMPUTE: {
                "value": str(policy.compute),
                "requestPolicy": {
                    "default": "0",
                    "validRange": {"min": "0", "max": str(WHOLE_GPU_PERCENT), "step": "1"},
                },
            },
        }
        | ({} if mode is Mode.TIME_SLICING else clients),
    }


def _instance(gpu: Gpu, mode: Mode | None) -> Object:
    """A MIG instance: one user has all of it, and what it has is what it is."""
    memory = quantity(gpu.memory_mib - gpu.reserved_mib)
    return {
        "name": device_name(gpu),
        "attributes": _attributes(gpu, mode)
        | {
            contract.ATTRIBUTE_PROFILE: {"string": gpu.profile[:MAX_STRING]},
            "parentUUID": {"string": str(gpu.parent)[:MAX_STRING]},
        },
        "capacity": {contract.CAPACITY_MEMORY: {"value": memory}},
    }


def _attributes(gpu: Gpu, mode: Mode | None) -> Object:
    strings = {
        "kind": contract.KIND_GPU if gpu.parent is None else contract.KIND_MIG,
        contract.ATTRIBUTE_UUID.partition("/")[2]: gpu.uuid,
        contract.ATTRIBUTE_MODEL: gpu.model,
        "architecture": architecture(gpu.compute_capability),
        "mode": str(mode),
        "pciBusID": gpu.pci_bus_id,
    }
    versions = {
        "driverVersion": version(gpu.driver_version),
        "cudaVersion": version("{}.{}".format(*gpu.cuda_version)),
        "computeCapability": version("{}.{}".format(*gpu.compute_capability)),
    }
    numbers = {"index": gpu.index, "minor": gpu.minor, "memoryMiB": gpu.memory_mib}
    return (
        {name: {"string": value[:MAX_STRING]} for name, value in strings.items()}
        | {name: {"version": value} for name, value in versions.items()}
        | {name: {"int": value} for name, value in numbers.items()}
    )


def _status_device() -> Object:
    """No GPU at all: what a sidecar claims, so that the driver mounts its pod's status directory."""
    attributes = {"kind": {"string": contract.KIND_STATUS}}
    return {"name": STATUS_DEVICE, "allowMultipleAllocations": True, "attributes": attributes}
