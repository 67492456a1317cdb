"""What other systems call a share of a GPU: their resources, annotations, labels and variables; and find them in a pod.

Each dialect has its source, with the version that was read. A key with ``*`` stands for all keys of that form; of
``container.*`` the star is the container's name. A key that is not here is not read and stays.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from typing import Any, Final

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.quantity import GIB, MIB, exact_value, same_quantity
from gpushare.raw_objects import mapping, objects, text
from gpushare.reasons import Reason

_PERCENT: Final = Fraction(1, 100)


class Means(Enum):
    """What a field of another system says."""

    COUNT = auto()
    """Of how many GPUs the container gets a share each."""
    MEMORY = auto()
    """Memory of each GPU; ``unit`` is MiB of one, ``None`` where only the user can know it (``--unit``)."""
    PART = auto()
    """The same as a part of the card's memory; ``unit`` is the part that one is."""
    MEMORY_LIMIT = auto()
    """The most memory, part of it lent: bytes, or beside a ``PART`` a part. With ``unit`` it may stand alone."""
    COMPUTE = auto()
    """Compute that is reserved; ``unit`` is the part of a GPU that one is."""
    COMPUTE_LIMIT = auto()
    """The most compute, above what is reserved."""
    SLICES = auto()
    """Slices of the size that stands for the star, of which one is ``unit`` MiB."""
    REPLICA = auto()
    """Replicas of a GPU; how many there are of one the user says (``--replicas``)."""
    MODEL = auto()
    """GPU models, separated by commas."""
    CONTAINER = auto()
    """Which container the pod's share is for."""
    NOTHING = auto()
    """Nothing that gpu-share has, and the share is the same without it."""
    REFUSED = auto()
    """What the share depends on and gpu-share cannot give; ``fix`` says what to do. Empty or in ``fine``: nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One field."""

    means: Means
    unit: Fraction | None = None
    fix: str = ""
    fine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One system. Its ``schedulers`` are taken out of the pod; with ``only_scheduled`` it reads no others' pods."""

    name: str
    resources: Mapping[str, Row] = field(default_factory=dict)
    annotations: Mapping[str, Row] = field(default_factory=dict)
    labels: Mapping[str, Row] = field(default_factory=dict)
    variables: Mapping[str, Row] = field(default_factory=dict)
    schedulers: tuple[str, ...] = ()
    only_scheduled: bool = False
    first: bool = False
    """The pod's share is for its first container; else pods with several do not say whose it is."""
    one_gpu: bool = False
    """Containers of a pod get their shares on one GPU; else each may get another one."""
    rest: str = ""
    """What a container gets that names no memory: ``card`` is all of it, ``compute`` the same part, empty unknown."""
    exclusive: bool = False
    """All compute of a GPU means the whole GPU, whatever the memory."""
    host_ipc: bool = False
    """Its pods need ``hostIPC``, which sharing pods may not have."""
    mps: bool = False
    """Replicas have their part of the compute as well."""


_NOTHING: Final = Row(Means.NOTHING)
_COUNT: Final = Row(Means.COUNT)
_MIB: Final = Row(Means.MEMORY, Fraction(1))
_BYTES: Final = Row(Means.MEMORY, Fraction(1, MIB))
_PERCENT_OF_MEMORY: Final = Row(Means.PART, _PERCENT)
_CORES: Final = Row(Means.COMPUTE, _PERCENT)
_REPLICA: Final = Row(Means.REPLICA)
_LIMIT: Final = Row(Means.MEMORY_LIMIT)
_UUIDS: Final = Row(Means.REFUSED, fix=f"choose GPUs by nodeSelector or {contract.GPU_MODEL}, and remove it")
_MIG: Final = Row(
    Means.REFUSED,
    fix=f"an instance has a profile here: write {contract.MIG_PROFILE} by hand",
    fine=("hami-core", "mps"),
)

GPU: Final = "nvidia.com/gpu"
"""Whole GPUs of NVIDIA's device plugin, and the number of virtual ones of HAMi."""
DIALECTS: Final = (
    # HAMi 2.10: config.md, GenerateResourceRequests in pkg/device/nvidia/device.go
    Dialect(
        name="HAMi",
        resources={
            GPU: _COUNT,
            "nvidia.com/gpumem": _MIB,
            "nvidia.com/gpumem-percentage": _PERCENT_OF_MEMORY,
            "nvidia.com/gpucores": _CORES,
            "nvidia.com/priority": _NOTHING,
        },
        annotations={
            "nvidia.com/use-gputype": Row(Means.MODEL),
            "nvidia.com/nouse-gputype": Row(
                Means.REFUSED, fix=f"list the models that may be used in {contract.GPU_MODEL}, and remove it"
            ),
            "nvidia.com/use-gpuuuid": _UUIDS,
            "nvidia.com/nouse-gpuuuid": _UUIDS,
            "nvidia.com/vgpu-mode": _MIG,
            "hami.io/*": _NOTHING,
        },
        schedulers=("hami-scheduler",),
        rest="card",
    ),
    # Volcano 1.15: how_to_use_volcano_vgpu.md; volcano-vgpu-device-plugin 1.12: config.md
    Dialect(
        name="Volcano vGPU",
        resources={
            "volcano.sh/vgpu-number": _COUNT,
            "volcano.sh/vgpu-memory": _MIB,
            "volcano.sh/vgpu-memory-percentage": _PERCENT_OF_MEMORY,
            "volcano.sh/vgpu-cores": _CORES,
        },
        annotations={"volcano.sh/vgpu-mode": _MIG, "scheduling.volcano.sh/*": _NOTHING},
        schedulers=("volcano",),
        rest="card",
    ),
    # vgpu-manager 0.4: README.md
    Dialect(
        name="vgpu-manager",
        resources={
            "nvidia.com/vgpu-number": _COUNT,
            "nvidia.com/vgpu-memory": _MIB,
            "nvidia.com/vgpu-cores": _CORES,
        },
        annotations={"nvidia.com/device-topology-mode": _NOTHING},
        schedulers=("vgpu-scheduler",),
        rest="card",
    ),
    # KAI 0.18: gpu-sharing/README.md, constants.go; gpu-fractioning: README.md; Run:ai: GPU fractions
    Dialect(
        name="KAI or Run:ai",
        annotations={
            "gpu-fraction": Row(Means.PART, Fraction(1)),
            "gpu-memory": _MIB,
            "gpu-fraction-num-devices": _COUNT,
            "gpu-fraction-container-name": Row(Means.CONTAINER),
            "gpu-sm-percentage": _CORES,
            "gpu-sm-cores": Row(Means.REFUSED, fix=f"write a percentage in {contract.COMPUTE}, and remove it"),
            "gpu-fraction.limit": _LIMIT,
            "gpu-memory.limit": _LIMIT,
            "nvidia.com/container.*.gpu-memory.request": _BYTES,
            "nvidia.com/container.*.gpu-memory.limit": Row(Means.MEMORY_LIMIT, Fraction(1, MIB)),
            "mps": _NOTHING,
            "pod-group-name": _NOTHING,
            "received-resource-type": _NOTHING,
            "runai-*": _NOTHING,
            "runai/*": _NOTHING,
        },
        labels={"kai.scheduler/*": _NOTHING, "runai/queue": _NOTHING},
        variables={"RUNAI_GPU_MEMORY_LIMIT": _LIMIT, "RUNAI_GPU_MEMORY_REQUEST": _NOTHING},
        schedulers=("kai-scheduler", "runai-scheduler"),
        first=True,
    ),
    # gpushare-scheduler-extender: userguide.md, samples; gpushare-device-plugin: --memory-unit
    Dialect(
        name="gpushare (Aliyun)",
        resources={"aliyun.com/gpu-mem": Row(Means.MEMORY), "aliyun.com/gpu-core.percentage": _CORES},
        one_gpu=True,
    ),
    # gpu-manager: README.md (100 vcuda-core are one GPU, one vcuda-memory is 256 MiB)
    Dialect(
        name="GPUManager (Tencent)",
        resources={"tencent.com/vcuda-core": _CORES, "tencent.com/vcuda-memory": Row(Means.MEMORY, Fraction(256))},
        annotations={"tencent.com/vcuda-core-limit": Row(Means.COMPUTE_LIMIT, _PERCENT)},
        exclusive=True,
    ),
    # aws-virtual-gpu-device-plugin: README.md (so many MPS clients of a GPU, without limits of memory)
    Dialect(
        name="AWS virtual GPU",
        resources={"k8s.amazonaws.com/vgpu": _REPLICA},
        host_ipc=True,
        mps=True,
    ),
    # nos 0.1.2: Getting started with MPS partitioning (gpu-<size>gb; MPS reads the G as GiB)
    Dialect(
        name="nos",
        resources={"nvidia.com/gpu-*gb": Row(Means.SLICES, Fraction(GIB))},
        host_ipc=True,
    ),
    # k8s-device-plugin 0.20: README.md (time slicing, MPS)
    Dialect(
        name="NVIDIA time slicing and MPS",
        resources={"nvidia.com/gpu.shared": _REPLICA, GPU: _REPLICA},
    ),
    # KubeShare 2.0: README.md (labels; gpu_mem in bytes, without it the part of gpu_request)
    Dialect(
        name="KubeShare",
        labels={
            "sharedgpu/gpu_request": Row(Means.COMPUTE, Fraction(1)),
            "sharedgpu/gpu_limit": Row(Means.COMPUTE_LIMIT, Fraction(1)),
            "sharedgpu/gpu_mem": _BYTES,
            "sharedgpu/gpu_model": Row(Means.MODEL),
            "sharedgpu/*": _NOTHING,
        },
        schedulers=("kubeshare-scheduler",),
        only_scheduled=True,
        exclusive=True,
        rest="compute",
    ),
)
UNKNOWN: Final = {
    "kubeshare/gpu_mem": "KubeShare 1 has objects of its own",
    "deepomatic.com/shared-gpu": "it says no amount of memory",
    "nvshare.com/gpu": "nvshare gives every pod all memory of a card",
    "tensor-fusion.ai/vram-request": "TensorFusion's fields have no table yet",
    "koordinator.sh/gpu-core": "Koordinator's fields have no table yet",
    "koordinator.sh/gpu-memory": "Koordinator's fields have no table yet",
    "koordinator.sh/gpu-memory-ratio": "Koordinator's fields have no table yet",
}
"""What asks other systems for shares that ``migrate`` cannot rewrite, and why."""


Pod = Mapping[str, Any]
SECTIONS: Final = ("initContainers", "containers")
PARTS: Final = ("limits", "requests")
ASKS: Final = frozenset({Means.COUNT, Means.MEMORY, Means.PART, Means.SLICES, Means.COMPUTE, Means.REPLICA})
"""What says how much of GPUs, or of how many."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field as it stands in a pod: the container that it is for is empty where it is for the pod."""

    path: str
    key: str
    value: Any
    row: Row
    container: str = ""
    star: str = ""

    @property
    def text(self) -> str:
        """Return key and value as people write them, with the container."""
        shown = f"{self.key}: {self.value}"
        return f"{shown} ({self.container})" if self.container else shown

    def refusal(self, message: str) -> PolicyDenied:
        """Return the refusal that names field and value."""
        return PolicyDenied(self.path, f"{self.value!s:.80} {message}", Reason.INVALID_VALUE)


def containers(pod: Pod) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield section, place and container of each init and app container."""
    spec = mapping(pod, "spec")
    for section in SECTIONS:
        for index, each in enumerate(objects(spec, section)):
            yield section, index, each


def asking(pod: Pod, replicas: Collection[str]) -> list[tuple[Dialect, list[Field]]]:
    """Return the dialects in which a pod asks for a share, with all their fields.

    Args:
        pod: of which nothing is changed.
        replicas: resources that are replicas of a shared GPU.

    Raises:
        PolicyDenied: limit and request of a resource differ.
    """
    found = ((each, list(_fields(pod, each, replicas))) for each in DIALECTS)
    return [(dialect, fields) for dialect, fields in found if any(map(asks, fields))]


def asks(each: Field) -> bool:
    """Tell whether a field makes its pod one that asks for a share: alone, a number of GPUs does not."""
    if each.row.means is Means.MEMORY_LIMIT:
        return each.row.unit is not None
    return each.row.means in ASKS and (each.key != GPU or each.row.means is Means.REPLICA)


def whole_gpus(pod: Pod) -> Iterator[Field]:
    """Yield what asks for whole GPUs."""
    return (each for each in _of_resources(pod, {GPU: Row(Means.COUNT)}) if exact_value(each.value) != 0)


def _fields(pod: Pod, dialect: Dialect, replicas: Collection[str]) -> Iterator[Field]:
    if dialect.only_scheduled and mapping(pod, "spec").get("schedulerName") not in dialect.schedulers:
        return
    for each in _of_resources(pod, dialect.resources):
        if exact_value(each.value) != 0 and (each.row.means is not Means.REPLICA or each.key != GPU or GPU in replicas):
            yield each
    yield from _of_metadata(pod, "annotations", dialect.annotations)
    yield from _of_metadata(pod, "labels", dialect.labels)
    yield from _of_variables(pod, dialect.variables)


def _of_metadata(pod: Pod, kind: str, rows: Mapping[str, Row]) -> Iterator[Field]:
    for key, value in mapping(mapping(pod, "metadata"), kind).items():
        if (found := _row(rows, key)) is not None:
            row, star = found
            yield Field(f"metadata.{kind}[{key}]", key, value, row, "" if row.means is Means.NOTHING else star)


def _of_variables(pod: Pod, rows: Mapping[str, Row]) -> Iterator[Field]:
    for section, _, container in containers(pod):
        for each in objects(container, "env"):
            key, name = text(each, "name"), str(container.get("name"))
            if key in rows and "value" in each:
                yield Field(f"spec.{section}[{name}].env[{key}]", key, each["value"], rows[key], name)


def _of_resources(pod: Pod, rows: Mapping[str, Row]) -> Iterator[Field]:
    for section, _, container in containers(pod):
        name, resources = str(container.get("name")), mapping(container, "resources")
        limits, requests = (mapping(resources, part) for part in PARTS)
        for key in {**limits, **requests}:
            if (found := _row(rows, key)) is None:
                continue
            part = PARTS[key not in limits]
            value = limits.get(key, requests.get(key))
            field = Field(f"spec.{section}[{name}].resources.{part}[{key}]", key, value, found[0], name, found[1])
            if not same_quantity(requests.get(key, value), value):
                raise field.refusal(f"differs from the request of {requests[key]}; write the same value in both")
            yield field


def _row(rows: Mapping[str, Row], key: str) -> tuple[Row, str] | None:
    """Return the row of a key, and what stands for its star."""
    if key in rows:
        return rows[key], ""
    for pattern, row in rows.items():
        before, star, after = pattern.partition("*")
        if star and len(key) > len(before + after) and key.startswith(before) and key.endswith(after):
            return row, key[len(before) : len(key) - len(after)]
    return None


def keys(dialects: Sequence[Dialect] = DIALECTS) -> frozenset[str]:
    """Return the keys without a star by which pods ask for shares."""
    rows = [
        row for each in dialects for rows in (each.resources, each.annotations, each.labels) for row in rows.items()
    ]
    return frozenset(key for key, row in rows if "*" not in key and row.means in ASKS and key != GPU)
