"""Every name that crosses a boundary, defined once: annotations, labels, variables, classes, paths. Pure.

Other modules import from here and never spell such a name themselves.
"""

from typing import Final

GROUP: Final = "gpu-share.io"
DRIVER: Final = GROUP

# Labels.
NAMESPACE_LABEL: Final = f"{GROUP}/enabled"
NODE_LABEL: Final = f"{GROUP}/enabled"
NODE_MODE: Final = f"{GROUP}/mode"
"""On a node: how its GPUs are shared; wins over the chart's ``enforcer.mode``."""
MANAGED_LABEL: Final = f"{GROUP}/managed"

# Pod annotations: what a tenant writes.
MEMORY: Final = f"{GROUP}/memory"
COMPUTE: Final = f"{GROUP}/compute"
GPU_MODEL: Final = f"{GROUP}/gpu-model"
SAME_GPU: Final = f"{GROUP}/same-gpu"
GPUS: Final = f"{GROUP}/gpus"
"""Of how many GPUs a container gets a share each; on a node the same key means something else, see ``NODE_GPUS``."""
MIG_PROFILE: Final = f"{GROUP}/mig-profile"
"""A MIG instance instead of a share, such as ``1g.10gb``."""
MEMORY_LIMIT: Final = f"{GROUP}/memory-limit"
"""More than ``MEMORY``, which is reserved: so much a container may hold while nobody else has reserved it."""
MEMORY_OF: Final = f"memory.{GROUP}/"
"""Prefix: ``memory.gpu-share.io/<container>``."""
MEMORY_LIMIT_OF: Final = f"memory-limit.{GROUP}/"
"""Prefix: ``memory-limit.gpu-share.io/<container>``."""
COMPUTE_OF: Final = f"compute.{GROUP}/"
"""Prefix: ``compute.gpu-share.io/<container>``."""
RESIZE_OF: Final = f"resize.{GROUP}/"
"""Prefix: ``resize.gpu-share.io/<container>``, on a running pod: another quota, see ``gpushare.resize_annotation``."""
RESIZE_RIGHT: Final = "podresizes"
"""Who may ``update`` this resource of our group may set such annotations; it exists in RBAC only."""
MIG_PROFILE_OF: Final = f"mig-profile.{GROUP}/"
"""Prefix: ``mig-profile.gpu-share.io/<container>``."""
GPUS_OF: Final = f"gpus.{GROUP}/"
"""Prefix: ``gpus.gpu-share.io/<container>``."""
RETIRED: Final = (f"{GROUP}/priority",)
"""Annotations of earlier releases that have no effect any more: pods that still have them are admitted."""

# Namespace annotations: what an operator writes.
DEFAULT_MEMORY: Final = f"{GROUP}/default-memory"
DEFAULT_COMPUTE: Final = f"{GROUP}/default-compute"
MAX_MEMORY: Final = f"{GROUP}/max-memory"
MAX_MEMORY_LIMIT: Final = f"{GROUP}/max-memory-limit"
MAX_COMPUTE: Final = f"{GROUP}/max-compute"
ON_EXCEED: Final = f"{GROUP}/on-exceed"
GRACE_PERIOD: Final = f"{GROUP}/grace-period"
TOLERANCE: Final = f"{GROUP}/tolerance"
"""Violations that end in time add up: how much of them has no consequence, and in how long all of it comes back."""
OWN_CLAIMS: Final = f"{GROUP}/own-claims"
"""``any``: claims of this namespace may ask for any amount of GPUs, also without saying how much."""
COUNT_AMOUNTS: Final = f"{GROUP}/count-amounts"
"""``true``: claims of sharing pods state their MiB and percent so that a ResourceQuota can add them up."""
HOST_PATHS: Final = f"{GROUP}/host-paths"
"""Host paths that sharing pods of this namespace may mount, comma-separated; no other is allowed."""
ADDED_CAPABILITIES: Final = f"{GROUP}/added-capabilities"
"""Linux capabilities that they may add beside those that runtimes give every container, comma-separated."""
TOOLKIT_VARIABLES: Final = f"{GROUP}/toolkit-variables"
"""Variables named ``NVIDIA_*`` that they may set, comma-separated."""
ALLOWED_CAPABILITIES: Final = f"{GROUP}/driver-capabilities"
"""What containers may ask of NVIDIA's toolkit in ``NVIDIA_DRIVER_CAPABILITIES``, comma-separated."""
FRAMEWORKS: Final = f"{GROUP}/frameworks"
"""``none``: no variables of frameworks are set; else those that are set beside the usual ones, comma-separated."""

# Node annotation: narrows which GPUs of a labelled node are shared (UUIDs or indices, comma-separated).
NODE_GPUS: Final = f"{GROUP}/gpus"

# Device taint, and annotation of our ResourceSlices: what is not offered, and why (JSON, UUID to sentence).
UNHEALTHY: Final = f"{GROUP}/unhealthy"
EXCLUDED_GPUS: Final = f"{GROUP}/excluded-gpus"

# Annotation of our webhook configuration: when the serving certificate expires (RFC 3339). gpu-share-certs writes it.
SERVING_ENDS: Final = f"{GROUP}/serving-certificate-ends"

# Annotation of our ResourceSlices: where the node's audit log stands, as ``enforcer.audit.record.ChainHead`` writes it.
AUDIT_HEAD: Final = f"{GROUP}/audit-head"

# Annotation of our ResourceSlices: what the node's enforcer reports of itself, as JSON: ``version``, ``enforcing``,
# ``breaker`` (since when it is open, null while it is closed), ``auditLog`` (why it cannot be written, or empty),
# ``problems``.
ENFORCER: Final = f"{GROUP}/enforcer"

# Annotation of a policy: the chart value tenantResize is true, so that the policy is shipped with other content.
TENANT_RESIZE: Final = f"{GROUP}/tenant-resize"

# Foreign annotations we read.
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
MIRROR: Final = "kubernetes.io/config.mirror"

# Dynamic Resource Allocation.
DEVICE_CLASS: Final = GROUP
STATUS_DEVICE_CLASS: Final = f"status.{GROUP}"
MIG_DEVICE_CLASS: Final = f"mig.{GROUP}"
"""Of MIG instances: each has one user, so a quota on it counts instances."""
SHARING_CLASSES: Final = (DEVICE_CLASS, MIG_DEVICE_CLASS)
"""Those of which a claim written by hand is used as it is."""
ALL_CLASSES: Final = (*SHARING_CLASSES, STATUS_DEVICE_CLASS)
MEMORY_COUNT_CLASS: Final = f"memory-mib.{GROUP}"
COMPUTE_COUNT_CLASS: Final = f"compute-percent.{GROUP}"
"""No device is of these two. Claims name them as alternatives, for quotas alone: nobody gets such a device."""
DEVICE_QUOTA: Final = ".deviceclass.resource.k8s.io/devices"
"""Behind the name of a DeviceClass: the key by which a ResourceQuota counts its devices."""
OTHER_GPU_CLASSES: Final = (
    "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", "hami-core-gpu.project-hami.io", "gpu.amd.com",
    "gpu.intel.com",
)  # fmt: skip
"""DeviceClasses of other DRA drivers for GPUs: NVIDIA's, HAMi's, AMD's and Intel's."""
IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that every DeviceClass has; the scheduler itself makes a claim for it."""
CLAIM: Final = "gpu-share"
"""Name of the entry in ``spec.resourceClaims``."""
TEMPLATE_PREFIX: Final = "gpu-share-"
ATTRIBUTE_UUID: Final = f"{GROUP}/uuid"
ATTRIBUTE_MODEL: Final = "model"
ATTRIBUTE_MODE: Final = "mode"
"""How a GPU is shared."""
TIME_SLICING: Final = "time-slicing"
"""The mode in which a container can use several GPUs: of MPS a process has one daemon, and each GPU has its own."""
ATTRIBUTE_PROFILE: Final = "profile"
"""Of a MIG instance, such as ``1g.10gb``."""
KIND_GPU: Final = "gpu"
KIND_MIG: Final = "mig"
KIND_STATUS: Final = "status"
CAPACITY_MEMORY: Final = "memory"
CAPACITY_COMPUTE: Final = "compute"
CAPACITY_CLIENTS: Final = "clients"
LIMIT_IN_FORCE: Final = "LimitInForce"
"""Condition of a claim's devices: whether the limits of its containers are in force."""
MAX_CLIENTS: Final = 48
"""MPS client contexts a GPU serves (Volta and newer)."""
MAX_SHARING_CONTAINERS: Final = 31
"""A claim holds at most 32 requests and as many devices; one of them is the sidecar's."""

# What reports the enforcer's Events. Who may write Events in a namespace can write it as well.
ENFORCER_REPORTER: Final = f"{DRIVER}/enforcer"

# The kubelet's plugin sockets, and what containers get through CDI (Container Device Interface).
DRIVER_SOCKET: Final = f"plugins/{DRIVER}/dra.sock"
REGISTRATION_SOCKET: Final = f"plugins_registry/{DRIVER}-reg.sock"
"""Both below the kubelet's root directory."""
CDI_KIND: Final = f"{GROUP}/share"
CDI_FILE_PREFIX: Final = f"{GROUP}-"
TOOLKIT_CDI_KIND: Final = "nvidia.com/gpu"
"""What NVIDIA's container toolkit calls its own devices; it gives them the libraries and device nodes."""

# The sidecar.
SIDECAR: Final = "gpu-share"
"""Name of the sidecar container, and of its request."""
NO_TOKEN_VOLUME: Final = "gpu-share-no-token"  # noqa: S105 - a volume name
TOKEN_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a mount path

# Variables.
CUDA_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
NVIDIA_DRIVER_CAPABILITIES: Final = "NVIDIA_DRIVER_CAPABILITIES"
NOT_OF_THE_TOOLKIT: Final = ("NVIDIA_API_KEY", "NVIDIA_TF32_OVERRIDE")
"""Variables of programs that NVIDIA's container toolkit does not read."""
NVIDIA_GDS: Final = "NVIDIA_GDS"
"""By which the toolkit adds the devices of GPUDirect Storage."""
MPS_PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
MPS_LOG_DIRECTORY: Final = "CUDA_MPS_LOG_DIRECTORY"
MPS_MEMORY_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
MPS_THREAD_PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_MIB: Final = "GPU_SHARE_MEMORY_MIB"
DEVICE_MEMORY_MIB: Final = "GPU_SHARE_DEVICE_MEMORY_MIB"
MIG_PROFILE_VARIABLE: Final = "GPU_SHARE_MIG_PROFILE"
GPUS_VARIABLE: Final = "GPU_SHARE_GPUS"
"""How many GPUs a container has a share of; only where these are several."""
USABLE_MIB: Final = "GPU_SHARE_USABLE_MIB"
"""What a program may ask for: its limit less a reserve for what its own budget leaves out."""
MEMORY_FRACTION: Final = "GPU_SHARE_MEMORY_FRACTION"
"""The same as a fraction of what CUDA reports as the GPU's total memory."""
FREE_FRACTION: Final = "GPU_SHARE_FREE_FRACTION"
"""The same as a fraction of what CUDA reports as free to a program that starts."""
TGI_FRACTION: Final = "CUDA_MEMORY_FRACTION"
"""Of Text Generation Inference: a fraction of the total memory."""

MPS_CLIENTS: Final = "GPU_SHARE_MPS_CLIENTS"
"""How many MPS clients a container's share counts as: processes that may use the GPU at once."""

NO_CUDA_DEVICE: Final = ""
"""Hides every GPU from CUDA. The driver replaces it by the chosen GPU's UUID when the container is created."""
NO_NVIDIA_DEVICE: Final = "void"
"""Makes NVIDIA's container toolkit inject nothing."""
DRIVER_CAPABILITIES: Final = "compute,utility"
"""What NVIDIA's toolkit brings into a container unless its namespace allows more."""

# Paths inside a sharing container. Our own, never the default pipe directory: the toolkit mounts that one by itself.
PIPE_PATH: Final = "/run/gpu-share/mps/pipe"
LOG_PATH: Final = "/run/gpu-share/mps/log"
STATUS_PATH: Final = "/run/gpu-share/status"
SHARED_MEMORY_PATH: Final = "/dev/shm"  # noqa: S108 - where shm_open looks

# Extended resource of NVIDIA's device plugin: a whole GPU, which cannot stand beside a share.
WHOLE_GPU: Final = "nvidia.com/gpu"


def is_ours(key: str) -> bool:
    """Tell whether an annotation or label key is in our domain, known or not, whatever its case."""
    domain = key.partition("/")[0].lower()
    return domain == GROUP or domain.endswith(f".{GROUP}")
