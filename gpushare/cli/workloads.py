"""Where pods are in Kubernetes objects: in a Pod itself, in a workload's template, in the items of a list. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

DEFAULT_NAMESPACE: Final = "default"

_TEMPLATE: Final = ("spec", "template")
PLACES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """One pod inside an object.

    ``path`` leads from the document to the pod; ``owner`` is the object it belongs to (the pod itself, a Deployment,
    an item of a List), and ``named`` the namespace written there, ``None`` when it names none.
    """

    path: tuple[str | int, ...]
    owner_path: tuple[str | int, ...]
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
        return "".join(f"/{step}" for step in self.path)

    @property
    def label(self) -> str:
        """Return kind, namespace and name for a message."""
        return f"{self.kind} {self.named}/{self.name}" if self.named else f"{self.kind} {self.name}"


def concerns(api_version: str, kind: str) -> bool:
    """Tell whether an object of this kind may hold a pod, or is a Namespace."""
    key = (_group(api_version), kind)
    return key in PLACES or _items_kind(*key) is not None or key == ("", "Namespace")


def pods(value: Any) -> list[PodPlace]:
    """Return the pods of an object, in order. What is not shaped like an object holds none."""
    return list(_places(value, (), "", ""))


def namespaces(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the Namespace objects of a document."""
    if not isinstance(value, dict):
        return
    version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    if (version, kind) == ("v1", "Namespace"):
        yield value
    elif _items_kind(_group(version), kind) is not None and isinstance(value.get("items"), list):
        for item in value["items"]:
            yield from namespaces({"apiVersion": version, "kind": kind.removesuffix("List")} | _mapping(item))


def _places(value: Any, path: tuple[str | int, ...], version: str, kind: str) -> Iterator[PodPlace]:
    if not isinstance(value, dict):
        return
    version, kind = str(value.get("apiVersion", version)), str(value.get("kind", kind))
    group = _group(version)
    if (steps := PLACES.get((group, kind))) is not None:
        pod = _follow(value, steps)
        if isinstance(pod, dict):
            yield _place(value, pod, kind, path, steps)
    elif (of := _items_kind(group, kind)) is not None and isinstance(value.get("items"), list):
        for index, item in enumerate(value["items"]):
            yield from _places(item, (*path, "items", index), version, of)


def _place(
    owner: Mapping[str, Any], pod: Mapping[str, Any], kind: str, path: tuple[str | int, ...], steps: tuple[str, ...]
) -> PodPlace:
    metadata = _mapping(owner.get("metadata"))
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    named = metadata.get("namespace")
    return PodPlace(
        path=(*path, *steps),
        owner_path=path,
        kind=kind,
        name=str(name),
        named=str(named) if named else None,
        annotations=_mapping(metadata.get("annotations")),
        pod=pod,
    )


def _items_kind(group: str, kind: str) -> str | None:
    """Return the kind of a list's items (empty for ``v1 List``, whose items say it), ``None`` for no list of ours."""
    of = kind.removesuffix("List")
    if of == kind:
        return None
    known = (group, of) in PLACES or (group, of) in {("", ""), ("", "Namespace")}
    return of if known else None


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _follow(value: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        value = _mapping(value).get(step)
    return value


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
