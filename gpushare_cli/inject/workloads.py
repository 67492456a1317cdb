"""Where pods are in Kubernetes objects: in a Pod itself, in a workload's template, in the items of a list. Pure.

Paths lead to pod templates in objects of any other API, such as ``spec.workerGroupSpecs[*].template``. Of objects that
ask for shares where no path leads, ``notes`` tells: the webhook rewrites each of their pods when it is created.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract, namespace_policy
from gpushare.annotation_table import of_pod
from gpushare.errors import ConfigError, Problem
from gpushare.patterns import Pattern
from gpushare.quantity import quoted
from gpushare.raw_objects import mapping

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

    def field_of(self, problem: Problem) -> str:
        """Return a field of the pod as people write it, from the document; one of its namespace stays as it is."""
        known = problem.field.startswith(namespace_policy.FIELD)
        return problem.field if known else ".".join(filter(None, (self.field, problem.field)))

    @property
    def pointer(self) -> str:
        """Return the path as a JSON pointer."""
        return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in self.path)

    @property
    def label(self) -> str:
        """Return kind, namespace and name for a message."""
        return f"{self.kind} {self.named}/{self.name}" if self.named else f"{self.kind} {self.name}"


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
    return [place for path, of, owner in _each(value) for place in _places(owner, of, path, at)]


def objects(value: Any, *kinds: tuple[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of these groups and kinds in a document, list items included."""
    yield from (each for _, kind, each in _each(value) if kind in kinds)


def _each(
    value: Any, path: Steps = (), of: tuple[str, str] = ("", "")
) -> Iterator[tuple[Steps, tuple[str, str], Mapping[str, Any]]]:
    """Yield path, kind and content of each object; ``of`` are apiVersion and kind of one that does not say them."""
    if not isinstance(value, dict):
        return
    version, kind = str(value.get("apiVersion", of[0])), str(value.get("kind", of[1]))
    if (items := _items_kind(_group(version), kind)) is None or not isinstance(value.get("items"), list):
        yield path, (_group(version), kind), value
        return
    for index, item in enumerate(value["items"]):
        yield from _each(item, (*path, "items", index), (version, items))


def _places(owner: Mapping[str, Any], of: tuple[str, str], path: Steps, at: Sequence[Steps]) -> Iterator[PodPlace]:
    places = (PLACES[of],) if of in PLACES else at
    found = {where: pod for steps in places for where, pod in follow(owner, steps) if isinstance(pod, dict)}
    yield from (_place(owner, pod, of[1], path, where) for where, pod in found.items())


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


KINDS: Final = frozenset(
    {
        ("argoproj.io", "Rollout"),
        ("batch.volcano.sh", "Job"),
        ("jobset.x-k8s.io", "JobSet"),
        ("kubeflow.org", "Notebook"),
        ("kubeflow.org", "PyTorchJob"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        ("ray.io", "RayCluster"),
        ("ray.io", "RayJob"),
        ("ray.io", "RayService"),
    }
)
"""API group and kind of common objects that make pods, and do not give them their own annotations."""
HANDS_ON: Final = frozenset({("serving.kserve.io", "InferenceService")})
"""Those that give their own annotations to their pods."""
_OWN: Final = ("metadata", "annotations")
_LATER: Final = (
    "inject does not change this object; the webhook rewrites its pods at creation, in opted-in namespaces. To "
    "rewrite its pod templates here, give --pod-at PATH"
)
_MISPLACED: Final = (
    f"annotations on the object itself request no share; move the {contract.GROUP} annotations to its pod template"
)


def notes(value: Any, at: Sequence[Steps] = ()) -> Iterator[str]:
    """Yield a sentence for each object of a document that asks for shares where ``inject`` finds no pod.

    Args:
        value: the document.
        at: where objects of unknown kinds have pods.
    """
    for item in _items(value):
        group, kind = str(item.get("apiVersion", "")).rpartition("/")[0], str(item.get("kind", ""))
        if (group, kind) in PLACES or (group, kind) in POLICY or pods(item, at):
            continue
        asking = {path == _OWN for path in _asking(item)}
        if False in asking or (asking and (group, kind) in HANDS_ON):
            yield f"{_label(item, kind)}: {_LATER}"
        elif asking and (group, kind) in KINDS:
            yield f"{_label(item, kind)}: {_MISPLACED}"


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        items = value.get("items") if str(value.get("kind", "")).endswith("List") else None
        yield from (each for each in items if isinstance(each, dict)) if isinstance(items, list) else (value,)


def _asking(item: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each mapping that holds a pod annotation of ours; list items have their list's path."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), item)]
    while waiting:
        path, found = waiting.pop()
        if isinstance(found, dict):
            if any(isinstance(key, str) and of_pod(key) for key in found):
                yield path
            waiting += [((*path, str(key)), each) for key, each in found.items()]
        elif isinstance(found, list):
            waiting += [(path, each) for each in found]


def _label(item: Mapping[str, Any], kind: str) -> str:
    metadata = mapping(item, "metadata")
    named = [str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)]
    return f"{kind} {'/'.join(named)}".strip()
