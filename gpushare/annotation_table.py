"""The annotations and labels of our domain as one table. Pure.

The parsers, the hints for mistyped keys, docs/reference/annotations.md and ``gpu-share annotations`` come from it. A
test compares the chart's policies with it. A new annotation is a name in ``gpushare.contract`` and a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpushare import annotation_values as values
from gpushare import contract, defaults
from gpushare.errors import QuantityError
from gpushare.quantity import parse_duration, parse_gpus, parse_memory, parse_percent, parse_profile
from gpushare.resize_annotation import parse_request

CONTAINER: Final = "<container>"
"""Ends a key that names a container."""
WRONG: Final = "?"
"""No annotation has this value: the message about it is the one in the table."""


class Object(StrEnum):
    """What carries the annotation."""

    POD = "pod"
    RUNNING_POD = "running pod"
    NAMESPACE = "namespace"
    NODE = "node"
    RESOURCE_SLICE = "ResourceSlice"
    POLICY = "admission policy"
    WEBHOOK = "MutatingWebhookConfiguration"


class Reader(StrEnum):
    """What acts on the annotation; ``COMMAND_LINE`` where a command does so by itself. Commands show all of them."""

    WEBHOOK = "webhook"
    ENFORCER = "enforcer"
    POLICY = "admission policy"
    COMMAND_LINE = "gpu-share"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """What an annotation may hold. ``parse`` raises ``QuantityError``; ``str`` leaves the check to the reader."""

    name: str
    examples: tuple[str, ...] = ()
    parse: Callable[[object], Any] = str

    @property
    def message(self) -> str:
        """The message about a wrong value, which is shown as ``'?'``."""
        try:
            self.parse(WRONG)
        except QuantityError as error:
            return error.message
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One row. ``container_prefix`` begins the key that asks the same for a container by its name.

    ``default`` is what holds without the annotation; empty for nothing.
    """

    key: str
    on: Object
    type: ValueType
    read_by: tuple[Reader, ...]
    meaning: str
    default: str = ""
    container_prefix: str = ""
    label: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The key, and that of a container."""
        return (self.key, self.container_prefix + CONTAINER) if self.container_prefix else (self.key,)

    @property
    def place(self) -> str:
        """The object, and whether the key is a label there."""
        return f"{self.on} (label)" if self.label else str(self.on)


_MEMORY: Final = ValueType(name="memory", examples=("4Gi",), parse=parse_memory)
_PERCENT: Final = ValueType(name="percentage", examples=("25%",), parse=parse_percent)
_DEFAULT_COMPUTE: Final = ValueType(
    name="percentage, memory or none", examples=("25%", "memory", "none"), parse=values.parse_default_compute
)
_GPU_COUNT: Final = ValueType(name="number from 1 to 16", examples=("2",), parse=parse_gpus)
_PROFILE: Final = ValueType(name="MIG profile", examples=("1g.10gb",), parse=parse_profile)
_MODELS: Final = ValueType(name="list of GPU models", examples=("H100", "H100,A100"), parse=values.parse_models)
_RESIZE: Final = ValueType(name="resize request", examples=("3Gi", "3Gi;force"), parse=parse_request)
_DURATION: Final = ValueType(name="duration", examples=("5s",), parse=parse_duration)
_TOLERANCE: Final = ValueType(name="memory or percentage", examples=("256Mi", "5%"), parse=values.parse_tolerance)
_PATHS: Final = ValueType(name="list of host paths", examples=("/mnt/models,/scratch",), parse=values.parse_paths)
_ADDED: Final = ValueType(name="list of Linux capabilities", examples=("IPC_LOCK,SYS_NICE",), parse=values.parse_added)
_VARIABLES: Final = ValueType(name="list of variables", examples=(contract.NVIDIA_GDS,), parse=values.parse_variables)
_CAPABILITIES: Final = ValueType(
    name="list of driver capabilities", examples=("compute,utility,video",), parse=values.parse_capabilities
)
_FRAMEWORKS: Final = ValueType(
    name="list of frameworks, or none", examples=("jax", "torch", "none"), parse=values.parse_frameworks
)
_ANY: Final = ValueType(name="any", examples=("any",), parse=values.only("any"))
_GPU_LIST: Final = ValueType(name="list of UUIDs or indices", examples=("0,1",))
_TRUE: Final = ValueType(name="true", examples=("true",))
_COUNTED: Final = ValueType(name="true", examples=("true",), parse=values.only("true"))
_MODE: Final = ValueType(name="mps or time-slicing or mig", examples=("mps", "time-slicing", "mig"))
_REASONS: Final = ValueType(name="JSON object, UUID to reason")
_HEAD: Final = ValueType(name="sequence number and hash of an audit record")
_TIME: Final = ValueType(name="RFC 3339 time", examples=("2026-11-28T10:00:00+00:00",))
_REPORT: Final = ValueType(name="JSON object: version, enforcing, breaker, breakerReason, auditLog, problems")


def _one_of(**options: str) -> ValueType:
    words = {word.replace("_", "-"): does for word, does in options.items()}
    return ValueType(name=" or ".join(words), examples=tuple(words), parse=values.choice(words))


_WEBHOOK: Final = (Reader.WEBHOOK,)
_ENFORCER: Final = (Reader.ENFORCER,)
_SHARE: Final = (Reader.WEBHOOK, Reader.ENFORCER)
_MAXIMUM: Final = (Reader.WEBHOOK, Reader.ENFORCER, Reader.POLICY)
_POLICY: Final = (Reader.WEBHOOK, Reader.POLICY)

TABLE: Final = (
    Annotation(
        key=contract.MEMORY, container_prefix=contract.MEMORY_OF, on=Object.POD, type=_MEMORY, read_by=_MAXIMUM,
        default="default-memory of the namespace", meaning="GPU memory that each container with a share reserves",
    ),
    Annotation(
        key=contract.MEMORY_LIMIT, container_prefix=contract.MEMORY_LIMIT_OF, on=Object.POD, type=_MEMORY,
        read_by=_MAXIMUM, default="as much as it reserves; more needs max-memory-limit of the namespace",
        meaning="most GPU memory that a container may hold; what it does not reserve it borrows until others reserve "
        "it",
    ),
    Annotation(
        key=contract.COMPUTE, container_prefix=contract.COMPUTE_OF, on=Object.POD, type=_PERCENT, read_by=_MAXIMUM,
        default="default-compute of the namespace, else of the chart, within max-compute of the namespace; else none",
        meaning="most SMs of one GPU that a container may use, in percent",
    ),
    Annotation(
        key=contract.MIG_PROFILE, container_prefix=contract.MIG_PROFILE_OF, on=Object.POD, type=_PROFILE,
        read_by=_POLICY, meaning="profile of the MIG instance that a container gets instead of a share",
    ),
    Annotation(
        key=contract.GPUS, container_prefix=contract.GPUS_OF, on=Object.POD, type=_GPU_COUNT, read_by=_POLICY,
        default="1", meaning="number of GPUs on each of which a container gets a share",
    ),
    Annotation(
        key=contract.GPU_MODEL, on=Object.POD, type=_MODELS, read_by=_WEBHOOK, default="any model",
        meaning="GPU models that the scheduler may choose; each must be a whole word of the GPU's product name",
    ),
    Annotation(
        key=contract.SAME_GPU, on=Object.POD, read_by=_WEBHOOK, default="true",
        type=_one_of(
            true="the default: all containers of the pod use one GPU", false="each container may get another GPU"
        ),
        meaning="whether all containers of the pod get their shares on one GPU",
    ),
    Annotation(
        key=contract.RESIZE_OF + CONTAINER, on=Object.RUNNING_POD, type=_RESIZE,
        read_by=(Reader.ENFORCER, Reader.POLICY),
        meaning="new quota of that container (gpu-share resize); the user needs the RBAC verb update on podresizes",
    ),
    Annotation(
        key=contract.MANAGED_LABEL, on=Object.POD, label=True, type=_TRUE, read_by=_POLICY,
        meaning="set by the webhook: it gave the pod a share",
    ),
    Annotation(
        key=contract.NAMESPACE_LABEL, on=Object.NAMESPACE, label=True, type=_TRUE, read_by=_MAXIMUM,
        meaning="the namespace opts in",
    ),
    Annotation(
        key=contract.DEFAULT_MEMORY, on=Object.NAMESPACE, type=_MEMORY, read_by=_POLICY,
        meaning="GPU memory of a container whose pod requests a share without an amount of memory",
    ),
    Annotation(
        key=contract.DEFAULT_COMPUTE, on=Object.NAMESPACE, type=_DEFAULT_COMPUTE, read_by=_MAXIMUM,
        default=f"{defaults.DEFAULT_COMPUTE} (chart: webhook.defaultCompute)",
        meaning="compute of a container that requests no percentage: one that it reserves, or (memory) a cap of as "
        "much as its share is of the GPU's memory",
    ),
    Annotation(
        key=contract.MAX_MEMORY, on=Object.NAMESPACE, type=_MEMORY, read_by=_MAXIMUM,
        meaning="maximum GPU memory of each container; a ResourceQuota on "
        f"{contract.DEVICE_CLASS}{contract.DEVICE_QUOTA} limits the number of containers",
    ),
    Annotation(
        key=contract.MAX_MEMORY_LIMIT, on=Object.NAMESPACE, type=_MEMORY, read_by=_MAXIMUM,
        meaning="allows containers to borrow GPU memory, and is the maximum of their memory-limit",
    ),
    Annotation(
        key=contract.MAX_COMPUTE, on=Object.NAMESPACE, type=_PERCENT, read_by=_MAXIMUM,
        meaning="maximum compute of each container; also the limit of a container without requested or "
        "default compute",
    ),
    Annotation(
        key=contract.ON_EXCEED, on=Object.NAMESPACE, read_by=_SHARE, default=defaults.ON_EXCEED,
        type=_one_of(
            kill="the enforcer kills processes until the container is within its quota plus tolerance",
            kill_container="the enforcer kills the whole container", warn="the enforcer only warns",
        ),
        meaning="what the enforcer does with a container over its quota",
    ),
    Annotation(
        key=contract.GRACE_PERIOD, on=Object.NAMESPACE, type=_DURATION, read_by=_SHARE,
        default=f"{defaults.GRACE_SECONDS:g}s", meaning="time over quota before a kill",
    ),
    Annotation(
        key=contract.TOLERANCE, on=Object.NAMESPACE, type=_TOLERANCE, read_by=_SHARE,
        default=f"{defaults.TOLERANCE_MIB}Mi or {defaults.TOLERANCE_PERCENT}%, whichever is more",
        meaning="GPU memory above the quota that the enforcer ignores",
    ),
    Annotation(
        key=contract.OWN_CLAIMS, on=Object.NAMESPACE, type=_ANY, read_by=_MAXIMUM,
        meaning="claims written by hand and extended resources may exceed max-memory and max-compute, and "
        "get a whole GPU if "
        "they request no amount of memory",
    ),
    Annotation(
        key=contract.COUNT_AMOUNTS, on=Object.NAMESPACE, type=_COUNTED, read_by=_WEBHOOK,
        meaning="claims of sharing pods state their sums, so that a ResourceQuota on "
        f"{contract.MEMORY_COUNT_CLASS}{contract.DEVICE_QUOTA} limits the MiB of the whole namespace, and one on "
        f"{contract.COMPUTE_COUNT_CLASS}{contract.DEVICE_QUOTA} its percent",
    ),
    Annotation(
        key=contract.HOST_PATHS, on=Object.NAMESPACE, type=_PATHS, read_by=_SHARE,
        meaning="host paths that pods with a share may mount; paths of the kubelet, the container runtime and "
        "other node services never",
    ),
    Annotation(
        key=contract.ADDED_CAPABILITIES, on=Object.NAMESPACE, type=_ADDED, read_by=_SHARE,
        meaning="Linux capabilities that containers may add beside those that every container has; "
        "capabilities that act on the node, such as SYS_ADMIN, never",
    ),
    Annotation(
        key=contract.TOOLKIT_VARIABLES, on=Object.NAMESPACE, type=_VARIABLES, read_by=_SHARE,
        meaning="environment variables named NVIDIA_* that containers may set; they can make NVIDIA's container "
        "toolkit add devices and mounts",
    ),
    Annotation(
        key=contract.ALLOWED_CAPABILITIES, on=Object.NAMESPACE, type=_CAPABILITIES, read_by=_SHARE,
        default=contract.DRIVER_CAPABILITIES,
        meaning="driver capabilities that containers may list in NVIDIA_DRIVER_CAPABILITIES",
    ),
    Annotation(
        key=contract.FRAMEWORKS, on=Object.NAMESPACE, type=_FRAMEWORKS, read_by=_SHARE,
        meaning="frameworks that get optional environment variables, or the fraction of their share in their command; "
        "none: no framework variables are set at all",
    ),
    Annotation(
        key=contract.NODE_LABEL, on=Object.NODE, label=True, type=_TRUE, read_by=_ENFORCER,
        meaning="gpu-share may share the GPUs of this node",
    ),
    Annotation(
        key=contract.NODE_MODE, on=Object.NODE, label=True, type=_MODE, read_by=_ENFORCER,
        default=f"{defaults.ENFORCER['mode']} (chart: enforcer.mode)", meaning="sharing mode of the node's GPUs",
    ),
    Annotation(
        key=contract.NODE_GPUS, on=Object.NODE, type=_GPU_LIST, read_by=_ENFORCER, default="all",
        meaning="which of the node's GPUs gpu-share shares",
    ),
    Annotation(
        key=contract.EXCLUDED_GPUS, on=Object.RESOURCE_SLICE, type=_REASONS, read_by=(Reader.COMMAND_LINE,),
        meaning="set by the enforcer: the excluded GPUs, each with its reason",
    ),
    Annotation(
        key=contract.AUDIT_HEAD, on=Object.RESOURCE_SLICE, type=_HEAD,
        read_by=(Reader.ENFORCER, Reader.POLICY, Reader.COMMAND_LINE),
        meaning="set by the enforcer: the head of the node's audit log",
    ),
    Annotation(
        key=contract.ENFORCER, on=Object.RESOURCE_SLICE, type=_REPORT, read_by=(Reader.COMMAND_LINE,),
        meaning="set by the enforcer: its version and problems, and the state of its circuit breaker and audit log",
    ),
    Annotation(
        key=contract.SERVING_ENDS, on=Object.WEBHOOK, type=_TIME, read_by=(Reader.COMMAND_LINE,),
        meaning="set by gpu-share-certs: when the webhook's serving certificate expires",
    ),
    Annotation(
        key=contract.TENANT_RESIZE, on=Object.POLICY, type=_TRUE, read_by=(Reader.COMMAND_LINE,),
        meaning="set by the chart from tenantResize: the chart's policy lets tenants resize their pods' quotas",
    ),
)  # fmt: skip


def _annotations(*objects: Object) -> dict[str, Annotation]:
    return {row.key: row for row in TABLE if row.on in objects and not row.label}


OF_PODS: Final = _annotations(Object.POD)
OF_NAMESPACES: Final = _annotations(Object.NAMESPACE)
PREFIX_OF: Final = {row.key: row.container_prefix for row in OF_PODS.values() if row.container_prefix}
"""Each annotation that means the main container, and what begins the one that names a container."""
CONTAINER_PREFIXES: Final = tuple(PREFIX_OF.values())
_BY_PREFIX: Final = {row.container_prefix: row for row in OF_PODS.values() if row.container_prefix}


def of_pod(key: str) -> Annotation | None:
    """Find the row of a pod's annotation, whether it names a container or not; ``None`` for an unknown one."""
    return OF_PODS.get(key) or _BY_PREFIX.get(key[: key.find("/") + 1])
