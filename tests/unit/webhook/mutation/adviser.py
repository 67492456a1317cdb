"""Follow the problems of a denied pod mechanically: by field and reason, and to the letter."""

import copy
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpushare import contract
from gpushare.errors import Problem
from gpushare.reasons import Reason
from webhook.mutation import sidecar_spec
from webhook.mutation.settings import Settings

Json = dict[str, Any]
_REMOVED: Final = object()
_ACCEPTED: Final = {
    contract.MEMORY: "4Gi",
    contract.COMPUTE: "10%",
    contract.GPUS: "1",
    contract.GPU_MODEL: "H100",
    contract.SAME_GPU: "true",
    contract.MIG_PROFILE: "1g.10gb",
    contract.MEMORY_OF: "4Gi",
    contract.COMPUTE_OF: "10%",
    contract.GPUS_OF: "1",
    contract.MIG_PROFILE_OF: "1g.10gb",
}
"""What messages name as an example, by key or by the front of a key."""
_SIDECAR: Final = {**sidecar_spec.container(Settings()), "volumeMounts": []}
"""The webhook adds the mount again."""
_LESS: Final = {contract.MEMORY: "1Gi", contract.MEMORY_OF: "1Gi", contract.COMPUTE: "5%", contract.COMPUTE_OF: "5%"}
_TO_REMOVE: Final = {Reason.UNKNOWN_ANNOTATION, Reason.UNKNOWN_CONTAINER, Reason.CONFLICTS_WITH_SHARE}
"""Annotations with these problems are not given another value."""
_SECURITY: Final = {"privileged": False, "runAsNonRoot": True, "runAsUser": 1000}
MEANT: Final = "did you mean "
EXCLUDE: Final = "exclude container"
PROPAGATION: Final = "remove mountPropagation"
CHANGED: Final = "changed the sidecar: "
"""The sidecar is as it was if the other webhook leaves it out; a container that has only its name is removed."""


def follow(pod: Json, problems: Iterable[Problem]) -> Json:
    """Return a pod in which every problem is solved as its message says. What is removed or renamed comes last."""
    pod, problems = copy.deepcopy(pod), list(problems)
    conflicts = {each.field for each in problems if each.reason is Reason.CONFLICTS_WITH_SHARE}
    problems = [each for each in problems if each.reason is Reason.CONFLICTS_WITH_SHARE or each.field not in conflicts]
    for problem in sorted(problems, key=lambda each: each.reason in _TO_REMOVE):
        _solve(pod, problem, steps(problem.field))
    return dict(_swept(pod))


def steps(field: str) -> list[str]:
    """Split a field into names, indices and keys: ``a.b[c.d/e][0]`` has four."""
    found, rest = list[str](), field
    while rest:
        if rest.startswith("["):
            key, _, rest = rest[1:].partition("]")
            found.append(key)
            continue
        rest = rest.removeprefix(".")
        end = min((rest.index(each) for each in ".[" if each in rest), default=len(rest))
        found.append(rest[:end])
        rest = rest[end:]
    return found


def dangling(pod: Json) -> list[str]:
    """Return the mounts of volumes that the pod does not have, for which the API server would refuse it."""
    volumes = {each["name"] for each in pod["spec"].get("volumes") or []}
    return [mount["name"] for mount in _mounts(pod) if mount["name"] not in volumes]


def propagating(pod: Json) -> list[str]:
    """Return the containers without privileges whose mounts propagate: the API server would refuse the pod."""
    free = [each for each in _containers(pod) if not (each.get("securityContext") or {}).get("privileged")]
    return [one["name"] for one in free for mount in one.get("volumeMounts") or [] if _propagates(mount)]


def _solve(pod: Json, problem: Problem, path: list[str]) -> None:
    if path[:2] == ["metadata", "annotations"]:
        _solve_annotation(pod["metadata"]["annotations"], problem, path[2])
    elif EXCLUDE in problem.message:
        _put(pod, path[:3], _SIDECAR if CHANGED in problem.message else _REMOVED)
    elif path[-1] in _SECURITY:
        _put(pod, path, _SECURITY[path[-1]])
        for mount in re.findall(r"spec\.\w+\[\d+\]\.volumeMounts\[\d+\]", problem.message.partition(PROPAGATION)[2]):
            _put(pod, [*steps(mount), "mountPropagation"], _REMOVED)
    elif path[-2:] == ["hostPath", "path"]:
        _remove_mounts(pod, _at(pod, path[:-2]).get("name"))
        _put(pod, path[:-2], _REMOVED)
    elif path[-1] == "mountPath":
        _put(pod, path[:-1], _REMOVED)
    elif path[-1] == "name":
        _solve_name(pod, problem, path)
    else:
        _put(pod, path, _REMOVED)


def _solve_annotation(annotations: Json, problem: Problem, key: str) -> None:
    if MEANT in problem.message:
        near = problem.message.partition(MEANT)[2].removesuffix("?")
        front = key[: key.find("/") + 1]
        annotations.setdefault(near if "/" in near else front + near, annotations[key])
    if problem.reason is Reason.ABOVE_MAXIMUM:
        annotations.update({each: less for each in annotations if (less := _like(each, _LESS)) is not None})
    elif problem.reason in _TO_REMOVE or (value := _like(key, _ACCEPTED)) is None:
        annotations.pop(key, None)
    else:
        annotations[key] = value


def _like(key: str, values: dict[str, str]) -> str | None:
    return values.get(key, values.get(key[: key.find("/") + 1]))


def _solve_name(pod: Json, problem: Problem, path: list[str]) -> None:
    if path[1] == "volumes":
        volume = _at(pod, path[:-1])
        for mount in [*_mounts(pod), volume]:
            if mount["name"] == path[2]:
                mount["name"] = "renamed"
    elif problem.reason is Reason.RESERVED_NAME:
        _put(pod, path[:-1], _REMOVED)
    else:
        _put(pod, path, f"main-{path[-2]}")


def _remove_mounts(pod: Json, volume: str) -> None:
    for container in _containers(pod):
        mounts = container.get("volumeMounts") or []
        mounts[:] = [_REMOVED if each is not _REMOVED and each["name"] == volume else each for each in mounts]


def _propagates(mount: Any) -> bool:
    return mount is not _REMOVED and mount.get("mountPropagation") == "Bidirectional"


def _mounts(pod: Json) -> Iterator[Json]:
    for container in _containers(pod):
        yield from (each for each in container.get("volumeMounts") or [] if each is not _REMOVED)


def _containers(pod: Json) -> Iterator[Json]:
    for section in ("initContainers", "containers"):
        yield from (each for each in pod["spec"].get(section) or [] if each is not _REMOVED)


def _at(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value[_place(value, step)] if value is not _REMOVED else value
    return value


def _put(pod: Json, path: list[str], new: object) -> None:
    """Put a value where a path leads, unless it or something above it has been removed."""
    parent = _at(pod, path[:-1])
    places: list[Any] = [path[-1]] if isinstance(parent, dict) else []
    if isinstance(parent, list):
        places = [index for index, each in enumerate(parent) if _is_named(each, index, path[-1])]
    for place in places:
        parent[place] = copy.deepcopy(new) if isinstance(new, dict) else new


def _place(parent: Any, step: str) -> Any:
    if not isinstance(parent, list):
        return step
    return next(index for index, each in enumerate(parent) if _is_named(each, index, step))


def _is_named(entry: Any, index: int, step: str) -> bool:
    return str(index) == step or (isinstance(entry, dict) and entry.get("name") == step)


def _swept(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _swept(each) for key, each in value.items() if each is not _REMOVED}
    return [_swept(each) for each in value if each is not _REMOVED] if isinstance(value, list) else value
