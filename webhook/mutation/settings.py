"""Settings of the whole cluster: the chart's values, read from the environment at start. Pure."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar, get_args

from gpushare import defaults
from gpushare.annotation_values import parse_default_compute
from gpushare.errors import ConfigError
from gpushare.host_access import OUR_OWN
from gpushare.patterns import Pattern
from gpushare.quantity import WHOLE_GPU_PERCENT, named, parse_memory, parse_overcommit

T = TypeVar("T")
DEFAULT_TOLERATIONS: Final[tuple[dict[str, str], ...]] = (
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)
"""GPU nodes are usually tainted, and a share is no extended resource that would be tolerated by itself."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")

_IMAGE: Final = Pattern(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9+._-]*:[0-9a-fA-F]{32,})?",
    1024,
)
"""Registry, path, tag, digest, as container runtimes read them."""

Environment = Mapping[str, str]
Permission = Literal["allow", "refuse"]
PERMISSIONS: Final = get_args(Permission)
RootTenants = Literal["allow", "isolate", "refuse"]
AcrossNodes = Literal["none", "binpack", "spread"]
ACROSS_NODES: Final = get_args(AcrossNodes)
"""Which nodes sharing pods prefer: whatever the scheduler does, those with many shares, those with few."""


def _requests() -> dict[str, str]:
    return {"cpu": "1m", "memory": "24Mi"}


def _limits() -> dict[str, str]:
    return {"cpu": "200m", "memory": "128Mi"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Chart values the rewriting depends on. Memory in MiB; ``max_memory_mib`` is the largest GPU, if known.

    ``default_compute`` is the percent that a container reserves which asks for none, or ``none``, or ``memory``.
    ``most_compute`` is the percent of one GPU that all containers on it may ask for together; ``several_gpus`` says
    whether a container may ask for several, which no GPU shared through MPS can serve. ``protected_paths`` are host
    paths that no sharing pod mounts; ``host_network`` lets sharing pods use ``hostNetwork``.
    ``scheduler_names`` are the profiles of Kubernetes' own scheduler, which alone places shares.
    """

    image: str = "gpu-share:0.1.0"
    image_pull_policy: str = "IfNotPresent"
    min_memory_mib: int = defaults.MIN_MEMORY_MIB
    default_compute: int | str = defaults.DEFAULT_COMPUTE
    max_memory_mib: int | None = None
    tolerations: tuple[dict[str, Any], ...] = DEFAULT_TOLERATIONS
    runtime_class: str | None = None
    across_nodes: AcrossNodes = defaults.ACROSS_NODES
    root_tenants: RootTenants = defaults.ROOT_TENANTS
    several_gpus: Permission = "allow"
    most_compute: int = WHOLE_GPU_PERCENT
    sidecar_requests: dict[str, str] = field(default_factory=_requests)
    sidecar_limits: dict[str, str] = field(default_factory=_limits)
    log_level: str = defaults.LOG_LEVEL
    protected_paths: tuple[str, ...] = OUR_OWN
    host_network: bool = False
    scheduler_names: tuple[str, ...] = defaults.SCHEDULER_NAMES

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """Read the ``GPU_SHARE_*`` variables the chart sets; what is absent or empty keeps its default.

        Raises:
            ConfigError: a variable holds something else than it should; the message names it.
        """
        values: dict[str, Any] = {}
        for name, (attribute, read) in VARIABLES.items():
            if text := environment.get(name, ""):
                values[attribute] = read(name, text)
        return cls(**values)


def image(name: str, text: str) -> str:
    """Read the reference of a container image, such as ``registry.example:5000/team/gpu-share:0.1.0``.

    Raises:
        ConfigError: it is none; ``name`` is the variable or key.
    """
    if _IMAGE.fullmatch(text) is None:
        raise ConfigError(f"{name}: {text!a:.80} is not an image; write for example registry.example/gpu-share:0.1.0")
    return text


def _text(_name: str, text: str) -> str:
    return text


def _quantity(parse: Callable[[str], T]) -> Callable[[str, str], T]:
    return lambda name, text: named(name, parse, text)


def _object(name: str, text: str) -> dict[str, str]:
    value = _json(name, text)
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ConfigError(f'{name}: {text!r:.80} is not a JSON object of strings; write for example {{"cpu": "10m"}}')
    return value


def _tolerations(name: str, text: str) -> tuple[dict[str, Any], ...]:
    value = _json(name, text)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ConfigError(
            f'{name}: {text!r:.80} is not a JSON list of tolerations; write for example [{{"operator": "Exists"}}]'
        )
    return tuple(value)


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r:.80} is not JSON: {error}") from error


def _paths(name: str, text: str) -> tuple[str, ...]:
    paths = tuple(text.split(","))
    if not all(path.startswith("/") for path in paths):
        raise ConfigError(
            f"{name}: {text!r:.80} is not a list of absolute paths; write for example /var/lib/kubelet,/run/cdi"
        )
    return paths


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names) or any(each != each.strip() for each in names):
        raise ConfigError(
            f"{name}: {text!r:.80} contains an empty name or a space; write for example default-scheduler"
        )
    return names


def _permitted(name: str, text: str) -> bool:
    return _one_of(PERMISSIONS)(name, text) == "allow"


def _one_of(allowed: Collection[str]) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in allowed:
            raise ConfigError(f"{name}: {text!r:.80} is unknown; write one of {', '.join(allowed)}")
        return text

    return read


VARIABLES: Final = {
    "GPU_SHARE_IMAGE": ("image", image),
    "GPU_SHARE_IMAGE_PULL_POLICY": ("image_pull_policy", _one_of(PULL_POLICIES)),
    "GPU_SHARE_MIN_MEMORY": ("min_memory_mib", _quantity(parse_memory)),
    "GPU_SHARE_MAX_MEMORY": ("max_memory_mib", _quantity(parse_memory)),
    "GPU_SHARE_DEFAULT_COMPUTE": ("default_compute", _quantity(parse_default_compute)),
    "GPU_SHARE_TOLERATIONS": ("tolerations", _tolerations),
    "GPU_SHARE_RUNTIME_CLASS": ("runtime_class", _text),
    "GPU_SHARE_ACROSS_NODES": ("across_nodes", _one_of(ACROSS_NODES)),
    "GPU_SHARE_ROOT_TENANTS": ("root_tenants", _one_of(get_args(RootTenants))),
    "GPU_SHARE_COMPUTE_OVERCOMMIT": ("most_compute", _quantity(parse_overcommit)),
    "GPU_SHARE_SEVERAL_GPUS": ("several_gpus", _one_of(PERMISSIONS)),
    "GPU_SHARE_SIDECAR_REQUESTS": ("sidecar_requests", _object),
    "GPU_SHARE_SIDECAR_LIMITS": ("sidecar_limits", _object),
    "GPU_SHARE_PROTECTED_PATHS": ("protected_paths", _paths),
    "GPU_SHARE_HOST_NETWORK": ("host_network", _permitted),
    "GPU_SHARE_SCHEDULER_NAMES": ("scheduler_names", _names),
    "GPU_SHARE_LOG_LEVEL": ("log_level", _one_of(LOG_LEVELS)),
}
