"""A pod's containers as one list, read from the raw dict; the shape of each field is checked. Pure.

``null`` stands for absent wherever Kubernetes says so; anything else of the wrong type is refused with its field.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Container as Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from gpushare import contract, mps_variables
from gpushare.errors import PolicyDenied
from gpushare.fields import all_of, bounded_mapping, invalid, mapping, names_of, objects, type_name
from gpushare.findings import Findings, collect
from gpushare.host_access import SECTIONS
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
T = TypeVar("T")


class Kind(StrEnum):
    """How long a container runs, which decides what it adds to what the pod holds at once."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of any kind. ``field`` is its path for people, ``reserved`` its entries of ``RESERVED`` names.

    ``limits``, ``requests`` and ``claims`` are those of its ``resources``, ``security`` is its ``securityContext``. All
    are empty if they cannot be read.
    """

    kind: Kind
    section: str
    field: str
    name: str
    raw: Json
    env: Sequence[Json]
    reserved: Sequence[Json]
    resources: Json
    limits: Json
    requests: Json
    claims: Sequence[Json]
    security: Json


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod whose shape was checked. ``containers`` come in order of their start: init list, apps, ephemeral."""

    pod: Json
    metadata: Json
    annotations: Mapping[str, Any]
    spec: Json
    security: Json
    """Its ``securityContext``; empty where that cannot be read."""
    containers: tuple[Container, ...]
    sidecar: Container | None
    """The container of the sidecar's name; a tenant may have written it."""


def names_claim(entry: Json, known: Collection[str]) -> bool:
    """Tell whether an entry of ``spec.resourceClaims`` names a known ``claim/<name>`` or ``template/<name>``."""
    template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
    return f"template/{template}" in known or f"claim/{claim}" in known


def claims_used(container: Container) -> set[str]:
    """Name the entries of ``spec.resourceClaims`` that a container uses."""
    return {str(each.get("name")) for each in container.claims}


def read_annotations(pod: Json) -> Mapping[str, Any]:
    """Return ``metadata.annotations``, empty where there are none.

    Raises:
        PolicyDenied: metadata, or the annotations, are no object, or there are too many of them.
    """
    annotations = mapping(mapping(pod.get("metadata"), "metadata").get("annotations"), "metadata.annotations")
    if len(annotations) > MAX_ANNOTATIONS:
        message = f"has {len(annotations)} keys, more than the API server's limit of 256 KiB allows; remove some"
        raise PolicyDenied("metadata.annotations", message, Reason.TOO_LARGE)
    if not all_of(annotations, str):
        raise invalid("metadata.annotations", "has a key that is not a string; put it in quotes")
    return annotations


def read_pod(pod: Json) -> PodView:
    """Check the shape of everything the rewriting touches.

    Raises:
        PolicyDenied: fields of the wrong type, more than 64 containers or more than 1000 variables in one.
    """
    return collect(view_pod, pod, read_annotations(pod))


def view_pod(findings: Findings, pod: Json, annotations: Mapping[str, Any]) -> PodView:
    """Check as ``read_pod`` does. What is returned has all containers, also those with a problem.

    Args:
        findings: get the problems.
        pod: the raw object.
        annotations: those of the pod, as ``read_annotations`` returns them.

    Raises:
        PolicyDenied: the containers cannot be read at all.
    """
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        raise invalid("spec", f"must be an object, not {type_name(spec)}")
    containers = _containers(findings, spec)
    if Kind.APP not in [each.kind for each in containers]:
        raise invalid("spec.containers", "must be a list of at least one container")
    sidecars = [each for each in containers if each.name == contract.SIDECAR]
    metadata = mapping(pod.get("metadata"), "metadata")
    security = _part(findings, mapping, spec, "securityContext", "spec") or {}
    return PodView(pod, metadata, annotations, spec, security, tuple(containers), sidecars[0] if sidecars else None)


def _containers(findings: Findings, spec: Json) -> list[Container]:
    found, fields, brought = list[Container](), dict[str, str](), 0
    for section, entries in [(each, objects(spec[each], f"spec.{each}")) for each in SECTIONS if each in spec]:
        for index, raw in enumerate(entries):
            container = _container(findings, section, f"spec.{section}[{index}]", raw)
            other = fields.get(container.name)
            if other and container.name:
                message = f"{quoted(container.name)} is also the name of {other}; rename one of the two"
                findings.problem(f"{container.field}.name", message, Reason.INVALID_POD)
            fields[container.name] = container.field
            found.append(container)
            brought += container.name != contract.SIDECAR
            if brought > MAX_CONTAINERS:
                message = f"the pod has too many containers; write at most {MAX_CONTAINERS} in a pod with a share"
                raise PolicyDenied(f"spec.{section}", message, Reason.TOO_MANY_CONTAINERS)
    return found


def _container(findings: Findings, section: str, field: str, raw: dict[str, Any]) -> Container:
    """Read a container; one without a name has an empty name, and one with unreadable variables has none."""
    name = raw.get("name")
    if not isinstance(name, str):
        message = f"must be a string, not {type_name(name)}; give the container a name, such as main"
        findings.problem(f"{field}.name", message, Reason.INVALID_POD)
        name = ""
    elif not name:
        findings.problem(f"{field}.name", "is empty; give the container a name, such as main", Reason.INVALID_POD)
    env, reserved = findings.attempt(_env, findings, raw.get("env"), f"{field}.env") or ([], [])
    where, resources = f"{field}.resources", _part(findings, mapping, raw, "resources", field) or {}
    limits = _part(findings, bounded_mapping, resources, "limits", where) or {}
    requests = _part(findings, bounded_mapping, resources, "requests", where) or {}
    claims = _part(findings, objects, resources, "claims", where) or []
    security = _part(findings, mapping, raw, "securityContext", field) or {}
    kind = _kind(section, raw)
    return Container(kind, section, field, name, raw, env, reserved, resources, limits, requests, claims, security)


def _kind(section: str, raw: Json) -> Kind:
    if section == "initContainers":
        return Kind.SIDECAR if raw.get("restartPolicy") == "Always" else Kind.INIT
    return Kind.APP if section == "containers" else Kind.EPHEMERAL


def _part(findings: Findings, read: Callable[[object, str], T], whole: Json, key: str, field: str) -> T | None:
    return findings.attempt(read, whole[key], f"{field}.{key}") if key in whole else None


def _env(findings: Findings, value: object, field: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the variables, and of them those with ``RESERVED`` names."""
    env = objects(value, field)
    names = names_of(env)
    wrong = [] if all_of(names, str) else [index for index, name in enumerate(names) if not isinstance(name, str)]
    for index in wrong:
        findings.problem(f"{field}[{index}].name", "must be a string", Reason.INVALID_POD)
    named = [entry for entry in env if isinstance(entry.get("name"), str)] if wrong else env
    reserved = [entry for entry in named if entry["name"] in RESERVED]
    if len(env) > MAX_ENV and len(env) - min(len(reserved), len(RESERVED)) > MAX_ENV:
        message = f"has {len(env)} variables; write at most {MAX_ENV} for a container of a pod with a share"
        raise PolicyDenied(field, message, Reason.TOO_LARGE)
    return named, reserved
