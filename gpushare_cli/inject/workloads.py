"""Where pods are in Kubernetes objects: in a Pod itself, in a workload's template, in the items of a list. Pure.

Paths lead to pod templates in objects of any other API, such as ``spec.workerGroupSpecs[*].template``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import ConfigError
from gpushare.patterns import Pattern
from gpushare.quantity import quoted
from gpushare.raw_objects import mapping
from gpushare.raw_objects import objects as items_of

Steps = tuple[str | int, ...]
EACH: Final = "*"
"""A step to every entry of a list or a mapping."""
_MOST: Final = 256
_PATH: Final = Pattern(r"[A-Za-z][A-Za-z0-9_-]*(\.([A-Za-z][A-Za-z0-9_-]*|\*)|\[([0-9]{1,4}|\*)\])*", _MOST)
DEFAULT_NAMESPACE: Final = "default"

_TEMPLATE: Final = ("spec", "template")
PLACES: Final[Mapping[tuple[str, str], Steps]] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
    ("batch", "Job"): _TEMPLATE,
}
"""API group and kind of every object that makes pods, and where in it the pod stands."""
NAMESPACE: Final = ("", "Namespace")
CLAIM: Final = ("resource.k8s.io", "ResourceClaim")
CLAIM_TEMPLATE: Final = ("resource.k8s.io", "ResourceClaimTemplate")
POLICY: Final = (NAMESPACE, CLAIM, CLAIM_TEMPLATE)
"""What is never changed but decides about pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """One pod inside an object.

    ``path`` leads from the document to the pod; ``owner`` is the object it belongs to (the pod itself, a Deployment,
    an item of a List), and ``named`` the namespace written there, ``None`` when it names none.
    """

    path: Steps
    owner_path: Steps
    kind: str
    name: str
    named: str | None
    annotations: Mapping[str, Any]
    pod: Mapping[str, Any]

    @property
    def field(self) -> str:
        """Return the path as people write it: ``items[0].spec.template``; empty for a bare pod."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")

    @property
    def pointer(self) -> str:
        """Return the path as a JSON pointer."""
        return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in self.path)

    @property
    def label(self) -> str:
        """Return kind, namespace and name for a message."""
        return f"{self.kind} {self.named}/{self.name}" if self.named else f"{self.kind} {self.name}"


def is_known(group: str, kind: str) -> bool:
    """Tell whether it is known where objects of this kind have their pods, or that they have none."""
    return (group, kind) in PLACES or (group, kind) in POLICY


def concerns(api_version: str, kind: str) -> bool:
    """Tell whether an object of this kind may hold a pod, or decides about pods."""
    key = (_group(api_version), kind)
    return key in PLACES or key in POLICY or _items_kind(*key) is not None


def pods(value: Any, at: Sequence[Steps] = ()) -> list[PodPlace]:
    """Return the pods of an object, in order. What is not shaped like an object holds none.

    Args:
        value: the object, or a list of such.
        at: where objects of unknown kinds may have pods.
    """
    return list(_places(value, (), ("", ""), at))


def objects(value: Any, *kinds: tuple[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of these groups and kinds in a document, list items included."""
    if not isinstance(value, dict):
        return
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    if (_group(version), kind) in kinds:
        yield value
    elif (of := _items_kind(_group(version), kind)) is not None and isinstance(value.get("items"), list):
        for item in items_of(value, "items"):
            yield from objects({"apiVersion": version, "kind": of, **item}, *kinds)


def _places(value: Any, path: Steps, of: tuple[str, str], at: Sequence[Steps]) -> Iterator[PodPlace]:
    """Yield the pods at ``path``; ``of`` are apiVersion and kind of an object that does not say them."""
    if not isinstance(value, dict):
        return
    version, kind = str(value.get("apiVersion", of[0])), str(value.get("kind", of[1]))
    group = _group(version)
    if (items := _items_kind(group, kind)) is not None and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            yield from _places(item, (*path, "items", index), (version, items), at)
        return
    places = (PLACES[group, kind],) if (group, kind) in PLACES else at
    found = {where: pod for steps in places for where, pod in follow(value, steps) if isinstance(pod, dict)}
    yield from (_place(value, pod, kind, path, where) for where, pod in found.items())


def _place(owner: Mapping[str, Any], pod: Mapping[str, Any], kind: str, path: Steps, steps: Steps) -> PodPlace:
    metadata = mapping(owner, "metadata")
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    named = metadata.get("namespace")
    return PodPlace(
        path=(*path, *steps),
        owner_path=path,
        kind=kind,
        name=str(name),
        named=str(named) if named else None,
        annotations=mapping(metadata, "annotations"),
        pod=pod,
    )


def _items_kind(group: str, kind: str) -> str | None:
    """Return the kind of a list's items (empty for ``v1 List``, whose items say it), ``None`` for no list of ours."""
    of = kind.removesuffix("List")
    if of == kind:
        return None
    known = (group, of) in PLACES or (group, of) in POLICY or (group, of) == ("", "")
    return of if known else None


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def parse_path(text: str) -> Steps:
    """Read a path.

    Raises:
        ConfigError: it is another text.
    """
    if _PATH.fullmatch(text) is None:
        raise ConfigError(
            f"--pod-at {quoted(text)} is not a path; write for example spec.workerGroupSpecs[*].template or "
            "spec.pytorchReplicaSpecs.*.template"
        )
    parts = text.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def follow(value: Any, steps: Sequence[str | int]) -> Iterator[tuple[Steps, Any]]:
    """Yield each place that a path leads to, as a path without ``*``, and what is there."""
    if not steps:
        yield (), value
        return
    for key, part in _entries(value, steps[0]):
        for path, found in follow(part, steps[1:]):
            yield (key, *path), found


def matches(steps: Steps, path: Steps) -> bool:
    """Tell whether a path leads to a place, among others."""
    return len(steps) == len(path) and all(step in (EACH, part) for step, part in zip(steps, path, strict=True))


def _entries(value: Any, step: str | int) -> Iterator[tuple[str | int, Any]]:
    entries = dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, dict) else {}
    if step == EACH:
        yield from entries.items()
    elif step in entries:
        yield step, entries[step]
