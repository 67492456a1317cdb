"""A pod's containers as one list, read from the raw dict; the shape of each field is checked. Pure.

``null`` stands for absent wherever Kubernetes says so; anything else of the wrong type is refused with its field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpushare import contract
from gpushare.errors import PolicyDenied
from gpushare.quantity import shown
from gpushare.reasons import Reason

MAX_CONTAINERS: Final = 64
MAX_ENV: Final = 1000
"""Both count what the pod brings, not what we add: a second pass must not refuse what the first one made."""
RESERVED: Final = frozenset(
    {
        contract.CUDA_VISIBLE_DEVICES,
        contract.NVIDIA_VISIBLE_DEVICES,
        contract.MPS_PIPE_DIRECTORY,
        contract.MPS_LOG_DIRECTORY,
        contract.MPS_MEMORY_LIMIT,
        contract.MPS_THREAD_PERCENTAGE,
        contract.MPS_CLIENT_PRIORITY,
        contract.NVIDIA_DRIVER_CAPABILITIES,
        contract.MEMORY_MIB,
        contract.MIG_PROFILE_VARIABLE,
        contract.GPUS_VARIABLE,
    }
)
"""Variables that mean something to the rewriting."""

Json = Mapping[str, Any]


class Kind(StrEnum):
    """How long a container runs, which decides what it adds to what the pod holds at once."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of any kind. ``field`` is its path for people, ``reserved`` its entries of ``RESERVED`` names."""

    kind: Kind
    section: str
    field: str
    name: str
    raw: Json
    env: Sequence[Json]
    reserved: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod whose shape was checked. ``containers`` come in order of their start: init list, apps, ephemeral."""

    pod: Json
    metadata: Json
    annotations: Mapping[str, Any]
    spec: Json
    containers: tuple[Container, ...]

    def named(self, name: str) -> Container | None:
        """Find a container by its name."""
        return next((each for each in self.containers if each.name == name), None)


def read_annotations(pod: Json) -> Mapping[str, Any]:
    """Return ``metadata.annotations``, empty where there are none.

    Raises:
        PolicyDenied: metadata, or the annotations, are no object.
    """
    annotations = mapping(mapping(pod.get("metadata"), "metadata").get("annotations"), "metadata.annotations")
    if not all(isinstance(key, str) for key in annotations):
        raise _invalid("metadata.annotations", "has a key that is no string; put it in quotes")
    return annotations


def read_pod(pod: Json) -> PodView:
    """Check the shape of everything the rewriting touches.

    Raises:
        PolicyDenied: a field of the wrong type, more than 64 containers or more than 1000 variables in one.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        raise _invalid("spec", f"must be an object, not {_type(spec)}")
    containers = tuple(_containers(spec))
    if not any(each.kind is Kind.APP for each in containers):
        raise _invalid("spec.containers", "must be a list of at least one container")
    metadata = mapping(pod.get("metadata"), "metadata")
    return PodView(pod, metadata, read_annotations(pod), spec, containers)


def mapping(value: object, field: str) -> dict[str, Any]:
    """Read an object; ``null`` is an empty one.

    Raises:
        PolicyDenied: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(field, f"must be an object, not {_type(value)}")
    return value


def boolean(value: object, field: str) -> bool:
    """Read a flag that has to be off beside a share; ``null`` is off.

    Raises:
        PolicyDenied: it is no boolean.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    what = f"the string {shown(value)}" if isinstance(value, str) else _type(value)
    raise _invalid(field, f"must be a boolean, not {what}; write false, without quotes")


def objects(value: object, field: str) -> list[dict[str, Any]]:
    """Read a list of objects; ``null`` is an empty one.

    Raises:
        PolicyDenied: it is no list, or an entry of it is no object.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise _invalid(field, f"must be a list, not {_type(value)}")
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise _invalid(f"{field}[{index}]", f"must be an object, not {_type(each)}")
    return value


def _containers(spec: Json) -> Iterator[Container]:
    brought, names = 0, dict[str, str]()
    for section in ("initContainers", "containers", "ephemeralContainers"):
        for index, raw in enumerate(objects(spec.get(section), f"spec.{section}")):
            container = _container(section, f"spec.{section}[{index}]", raw)
            if container.name in names:
                message = f"{shown(container.name)} is the name of {names[container.name]} too; rename one of them"
                raise _invalid(f"{container.field}.name", message)
            names[container.name] = container.field
            brought += container.name != contract.SIDECAR
            if brought > MAX_CONTAINERS:
                message = f"a sharing pod may have {MAX_CONTAINERS} containers of its own in all, this one has more"
                raise PolicyDenied(f"spec.{section}", message, Reason.TOO_MANY_CONTAINERS)
            yield container


def _container(section: str, field: str, raw: dict[str, Any]) -> Container:
    name = raw.get("name")
    if not isinstance(name, str):
        raise _invalid(f"{field}.name", f"must be a string, not {_type(name)}; give the container a name, such as main")
    if not name:
        raise _invalid(f"{field}.name", "is empty; give the container a name, such as main")
    env = objects(raw.get("env"), f"{field}.env")
    return Container(_kind(section, raw), section, field, name, raw, env, _reserved(env, f"{field}.env"))


def _kind(section: str, raw: Json) -> Kind:
    if section == "initContainers":
        return Kind.SIDECAR if raw.get("restartPolicy") == "Always" else Kind.INIT
    return Kind.APP if section == "containers" else Kind.EPHEMERAL


def _reserved(env: list[dict[str, Any]], field: str) -> tuple[Json, ...]:
    for index, entry in enumerate(env):
        if not isinstance(entry.get("name"), str):
            raise _invalid(f"{field}[{index}].name", "must be a string")
    found = tuple([entry for entry in env if entry["name"] in RESERVED])
    if len(env) - min(len(found), len(RESERVED)) > MAX_ENV:
        message = f"a container of a sharing pod may have {MAX_ENV} variables of its own, this one has {len(env)}"
        raise PolicyDenied(field, message, Reason.TOO_LARGE)
    return found


def _invalid(field: str, message: str) -> PolicyDenied:
    return PolicyDenied(field, message, Reason.INVALID_POD)


def _type(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
