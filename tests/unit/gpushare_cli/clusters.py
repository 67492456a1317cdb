"""A cluster for tests of verbs that read many kinds of objects: lists by kind, commands and logs by pod."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from gpushare.errors import ClusterError

Object = dict[str, Any]
SYSTEM = "gpu-share-system"
LABELS = {"app.kubernetes.io/name": "gpu-share-enforcer", "app.kubernetes.io/part-of": "gpu-share"}


class Cluster:
    """Answers what ``KubeClient`` is asked."""

    def __init__(self) -> None:
        metadata = {"namespace": SYSTEM, "name": "gpu-share-enforcer", "uid": "set", "labels": dict(LABELS)}
        self.lists: dict[str, list[Object]] = {"daemonsets": [{"metadata": metadata}]}
        self.answers: dict[str, tuple[bytes, ClusterError | None]] = {}
        """By pod: what a command writes, and how it fails."""
        self.logs: dict[str, bytes] = {}
        self.refused: dict[str, ClusterError] = {}
        """By kind."""
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self.read: list[str] = []

    def add(self, kind: str, *items: Object) -> None:
        self.lists.setdefault(kind, []).extend(items)

    def enforcer(self, node: str, output: bytes = b"", error: ClusterError | None = None) -> None:
        """Add the enforcer of a node, and what a command in it writes."""
        container = {"name": "enforcer", "args": ["enforcer", "--state=/var/lib/elsewhere"]}
        owners = [{"uid": "set", "controller": True}]
        name = f"enforcer-{node}"
        metadata = {"name": name, "namespace": SYSTEM, "labels": dict(LABELS), "ownerReferences": owners}
        spec = {"nodeName": node, "containers": [container]}
        self.add("pods", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
        self.answers[name] = output, error

    def get(self, where: str, **_: str) -> Object:
        self.read.append(where)
        if where == "/version":
            return {"gitVersion": "v1.37.0"}
        kind, name = where.split("/")[-2:]
        found = [each for each in self.lists.get(kind, []) if each["metadata"]["name"] == name]
        if not found:
            raise ClusterError(f"GET {where}: not found", 404)
        return copy.deepcopy(found[0])

    def listing(self, where: str, **query: str) -> Iterator[Object]:
        self.read.append(where)
        kind = where.rpartition("/")[2]
        if kind in self.refused:
            raise self.refused[kind]
        namespace = where.split("/namespaces/")[1].partition("/")[0] if "/namespaces/" in where else None
        for item in self.lists.get(kind, []):
            if namespace in {None, item["metadata"].get("namespace")} and _labelled(item, query.get("labelSelector")):
                yield copy.deepcopy(item)

    def list(self, where: str, **query: str) -> tuple[list[Object], str]:
        return list(self.listing(where, **query)), "1"

    def create(self, where: str, body: Object, **query: str) -> Object:
        assert query == {"dryRun": "All"}, "a command that only reads writes nothing"
        return body

    def run(self, pod: str, _namespace: str, _container: str, command: Sequence[str], **_: float) -> Iterator[bytes]:
        self.ran.append((pod, tuple(command)))
        output, error = self.answers[pod]
        yield output[:9]
        yield output[9:]
        if error is not None:
            raise error

    def log(self, pod: str, _namespace: str, container: str, *, lines: int, limit: int, previous: bool) -> bytes:
        if f"{pod}/{container}" not in self.logs:
            raise ClusterError("the node of that pod does not answer", 500)
        return b"".join(self.logs[f"{pod}/{container}"].splitlines(keepends=True)[-lines:])[:limit]


def _labelled(item: Object, selector: str | None) -> bool:
    labels = item["metadata"].get("labels") or {}
    return all(labels.get(key) == value if sign else key in labels for key, sign, value in
               (each.partition("=") for each in (selector or "").split(",") if each))  # fmt: skip
