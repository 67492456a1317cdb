"""A pod's containers as one list, read from the raw dict; the shape of each field is checked. Pure.

``null`` stands for absent wherever Kubernetes says so; anything else of the wrong type is refused with its field.
"""

from collections.abc import Container as Collection
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from gpushare import contract, mps_variables
from gpushare.checks import Check, collect, guarded
from gpushare.errors import PolicyDenied
from gpushare.fields import invalid, mapping, objects, problem, type_name
from gpushare.main_container import Choice, choose
from gpushare.quantity import quoted
from gpushare.reasons import Reason

MAX_CONTAINERS: Final = 64
MAX_ENV: Final = 1000
"""Both count what the pod brings, not what we add: a second pass must not refuse what the first one made."""
MAX_ANNOTATIONS: Final = 2**17
"""So many different keys are longer than the 256 KiB that the API server takes."""
RESERVED: Final = frozenset(
    {
        contract.CUDA_VISIBLE_DEVICES,
        contract.NVIDIA_VISIBLE_DEVICES,
        *mps_variables.NAMES,
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


@dataclass(frozen=True)  # without slots, for what is worked out once
class PodView:
    """A pod whose shape was checked. ``containers`` come in order of their start: init list, apps, ephemeral."""

    pod: Json
    metadata: Json
    annotations: Mapping[str, Any]
    spec: Json
    containers: tuple[Container, ...]

    @cached_property
    def apps(self) -> list[Container]:
        """The app containers."""
        return [each for each in self.containers if each.kind is Kind.APP]

    @cached_property
    def main(self) -> Choice:
        """The container that pod-wide annotations mean."""
        # A container whose name cannot be read has an empty one in the view.
        return choose(self.annotations, [{**each.raw, "name": each.name} for each in self.apps])

    def named(self, name: str) -> Container | None:
        """Find a container by its name."""
        return next((each for each in self.containers if each.name == name), None)


def names_claim(entry: Json, known: Collection[str]) -> bool:
    """Tell whether an entry of ``spec.resourceClaims`` names a known ``claim/<name>`` or ``template/<name>``."""
    template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
    return f"template/{template}" in known or f"claim/{claim}" in known


def claims_used(container: Container) -> set[str]:
    """Name the entries of ``spec.resourceClaims`` that a container uses."""
    field = f"{container.field}.resources"
    claims = mapping(container.raw.get("resources"), field).get("claims")
    return {str(each.get("name")) for each in objects(claims, f"{field}.claims")}


def read_annotations(pod: Json) -> Mapping[str, Any]:
    """Return ``metadata.annotations``, empty where there are none.

    Raises:
        PolicyDenied: metadata, or the annotations, are no object, or there are too many of them.
    """
    annotations = mapping(mapping(pod.get("metadata"), "metadata").get("annotations"), "metadata.annotations")
    if len(annotations) > MAX_ANNOTATIONS:
        message = f"has {len(annotations)} keys, more than the API server's limit of 256 KiB allows; remove some"
        raise PolicyDenied("metadata.annotations", message, Reason.TOO_LARGE)
    if not all(isinstance(key, str) for key in annotations):
        raise invalid("metadata.annotations", "has a key that is not a string; put it in quotes")
    return annotations


def read_pod(pod: Json) -> PodView:
    """Check the shape of everything the rewriting touches.

    Raises:
        PolicyDenied: fields of the wrong type, more than 64 containers or more than 1000 variables in one.
    """
    return collect(reading(pod))[0]


def reading(pod: Json) -> Check[PodView]:
    """Check as ``read_pod`` does. What is returned has all containers, also those with a problem.

    Raises:
        PolicyDenied: the containers cannot be read at all.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        raise invalid("spec", f"must be an object, not {type_name(spec)}")
    containers = yield from _containers(spec)
    if not any(one.kind is Kind.APP for one in containers):
        raise invalid("spec.containers", "must be a list of at least one container")
    metadata = mapping(pod.get("metadata"), "metadata")
    return PodView(pod, metadata, read_annotations(pod), spec, tuple(containers))


def _containers(spec: Json) -> Check[list[Container]]:
    found, names, brought = list[Container](), dict[str, str](), 0
    for section, lists in _sections(spec).items():
        for index, raw in enumerate(lists):
            container = yield from _container(section, f"spec.{section}[{index}]", raw)
            if container.name and container.name in names:
                message = f"{quoted(container.name)} is also the name of {names[container.name]}; rename one of the two"
                yield problem(f"{container.field}.name", message)
            names[container.name] = container.field
            found.append(container)
            brought += container.name != contract.SIDECAR
            if brought > MAX_CONTAINERS:
                message = f"the pod has too many containers; write at most {MAX_CONTAINERS} in a pod with a share"
                raise PolicyDenied(f"spec.{section}", message, Reason.TOO_MANY_CONTAINERS)
    return found


def _sections(spec: Json) -> dict[str, list[dict[str, Any]]]:
    sections = ("initContainers", "containers", "ephemeralContainers")
    return {section: objects(spec.get(section), f"spec.{section}") for section in sections}


def _container(section: str, field: str, raw: dict[str, Any]) -> Check[Container]:
    """Read a container; one without a name has an empty name, and one with unreadable variables has none."""
    name = raw.get("name")
    if not isinstance(name, str):
        message = f"must be a string, not {type_name(name)}; give the container a name, such as main"
        yield problem(f"{field}.name", message)
    elif not name:
        yield problem(f"{field}.name", "is empty; give the container a name, such as main")
    env = (yield from guarded(_env(raw, f"{field}.env"))) or []
    reserved = tuple([entry for entry in env if entry["name"] in RESERVED])
    return Container(_kind(section, raw), section, field, name if isinstance(name, str) else "", raw, env, reserved)


def _kind(section: str, raw: Json) -> Kind:
    if section == "initContainers":
        return Kind.SIDECAR if raw.get("restartPolicy") == "Always" else Kind.INIT
    return Kind.APP if section == "containers" else Kind.EPHEMERAL


def _env(raw: Json, field: str) -> Check[list[dict[str, Any]]]:
    env = objects(raw.get("env"), field)
    named = [entry for entry in env if isinstance(entry.get("name"), str)]
    if len(named) != len(env):
        wrong = [index for index, entry in enumerate(env) if not isinstance(entry.get("name"), str)]
        yield from (problem(f"{field}[{index}].name", "must be a string") for index in wrong)
    ours = sum(entry["name"] in RESERVED for entry in named)
    if len(env) - min(ours, len(RESERVED)) > MAX_ENV:
        message = f"has {len(env)} variables; write at most {MAX_ENV} for a container of a pod with a share"
        raise PolicyDenied(field, message, Reason.TOO_LARGE)
    return named
