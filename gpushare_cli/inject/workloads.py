"""Where pods are in Kubernetes objects: in a Pod itself, in a workload's template, in the items of a list. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.raw_objects import mapping
from gpushare.raw_objects import objects as items_of

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


def is_known(group: str, kind: str) -> bool:
    """Tell whether it is known where objects of this kind have their pods, or that they have none."""
    return (group, kind) in PLACES or (group, kind) in POLICY


def concerns(api_version: str, kind: str) -> bool:
    """Tell whether an object of this kind may hold a pod, or decides about pods."""
    key = (_group(api_version), kind)
    return key in PLACES or key in POLICY or _items_kind(*key) is not None


def pods(value: Any) -> list[PodPlace]:
    """Return the pods of an object, in order. What is not shaped like an object holds none."""
    return list(_places(value, (), "", ""))


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


def _follow(value: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value
