"""Find objects that ask for shares and whose pods a controller of their own makes, such as a RayCluster.

``inject`` leaves them as they are unless ``--pod-at`` says where such an object keeps its pods. The webhook rewrites
each pod when it is created.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract
from gpushare.annotation_table import of_pod
from gpushare.raw_objects import mapping
from gpushare_cli.inject.workloads import Steps, is_known, pods

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
        if is_known(group, kind) or pods(item, at):
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
