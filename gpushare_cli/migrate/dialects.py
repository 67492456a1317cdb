"""What other systems call a share of a GPU: their resources, annotations, labels and variables.

Each dialect has its source, with the version that was read. A key with ``*`` stands for all keys of that form; of
``container.*`` the star is the container's name. A key that is not here is not read and stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from typing import Final

from gpushare import contract
from gpushare.quantity import GIB, MIB

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
    source: str
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
    Dialect(
        name="HAMi",
        source="HAMi 2.10: config.md, GenerateResourceRequests in pkg/device/nvidia/device.go",
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
    Dialect(
        name="Volcano vGPU",
        source="Volcano 1.15: how_to_use_volcano_vgpu.md; volcano-vgpu-device-plugin 1.12: config.md",
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
    Dialect(
        name="vgpu-manager",
        source="vgpu-manager 0.4: README.md",
        resources={
            "nvidia.com/vgpu-number": _COUNT,
            "nvidia.com/vgpu-memory": _MIB,
            "nvidia.com/vgpu-cores": _CORES,
        },
        annotations={"nvidia.com/device-topology-mode": _NOTHING},
        schedulers=("vgpu-scheduler",),
        rest="card",
    ),
    Dialect(
        name="KAI or Run:ai",
        source="KAI 0.18: gpu-sharing/README.md, constants.go; gpu-fractioning: README.md; Run:ai: GPU fractions",
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
    Dialect(
        name="gpushare (Aliyun)",
        source="gpushare-scheduler-extender: userguide.md, samples; gpushare-device-plugin: --memory-unit",
        resources={"aliyun.com/gpu-mem": Row(Means.MEMORY), "aliyun.com/gpu-core.percentage": _CORES},
        one_gpu=True,
    ),
    Dialect(
        name="GPUManager (Tencent)",
        source="gpu-manager: README.md (100 vcuda-core are one GPU, one vcuda-memory is 256 MiB)",
        resources={"tencent.com/vcuda-core": _CORES, "tencent.com/vcuda-memory": Row(Means.MEMORY, Fraction(256))},
        annotations={"tencent.com/vcuda-core-limit": Row(Means.COMPUTE_LIMIT, _PERCENT)},
        exclusive=True,
    ),
    Dialect(
        name="AWS virtual GPU",
        source="aws-virtual-gpu-device-plugin: README.md (so many MPS clients of a GPU, without limits of memory)",
        resources={"k8s.amazonaws.com/vgpu": _REPLICA},
        host_ipc=True,
        mps=True,
    ),
    Dialect(
        name="nos",
        source="nos 0.1.2: Getting started with MPS partitioning (gpu-<size>gb; MPS reads the G as GiB)",
        resources={"nvidia.com/gpu-*gb": Row(Means.SLICES, Fraction(GIB))},
        host_ipc=True,
    ),
    Dialect(
        name="NVIDIA time slicing and MPS",
        source="k8s-device-plugin 0.20: README.md (time slicing, MPS)",
        resources={"nvidia.com/gpu.shared": _REPLICA, GPU: _REPLICA},
    ),
    Dialect(
        name="KubeShare",
        source="KubeShare 2.0: README.md (labels; gpu_mem in bytes, without it the part of gpu_request)",
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
