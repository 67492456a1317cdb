"""Manifests for tests of ``inject``: documents of every kind, as text."""

import json
from typing import Any

import yaml
from hypothesis import strategies as st

WRAPPED = {
    "Pod": ("v1", ()),
    "PodTemplate": ("v1", ("template",)),
    "ReplicationController": ("v1", ("spec", "template")),
    "Deployment": ("apps/v1", ("spec", "template")),
    "ReplicaSet": ("apps/v1", ("spec", "template")),
    "StatefulSet": ("apps/v1", ("spec", "template")),
    "DaemonSet": ("apps/v1", ("spec", "template")),
    "Job": ("batch/v1", ("spec", "template")),
    "CronJob": ("batch/v1", ("spec", "jobTemplate", "spec", "template")),
}
FOREIGN = (
    "kind: ConfigMap   # not ours\napiVersion: v1\nmetadata: {name: c}\ndata: {a: !!str 1,   b: &x 'x\n   y'\n }\n",
    "apiVersion: v1\nkind: Service\nmetadata:\n    name:   s\n",
    "",
    "# only a comment\n",
    "kind: Deployment\napiVersion: apps.example.com/v1\nspec: {template: {}}\n",
    "apiVersion: v1\nkind: Secret\nstringData: {a: !Vault x, a: twice}\n",
)


def pod(*, name: str = "model", memory: str | None = "4Gi", **annotations: str) -> dict[str, Any]:
    """Return a pod, or a pod template; ``memory=None`` is one that asks for nothing."""
    asked = {} if memory is None else {"gpu-share.io/memory": memory}
    return {
        "metadata": {"name": name, "annotations": {**asked, **annotations}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }


def wrapped(kind: str, inner: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    """Return an object of that kind with the pod inside."""
    version, path = WRAPPED[kind]
    value: Any = inner
    for step in reversed(path):
        value = {step: value}
    named = {"namespace": namespace} if namespace else {}
    metadata = {**value.get("metadata", {}), "name": f"{kind.lower()}-1", **named}
    return {"apiVersion": version, "kind": kind, **value, "metadata": metadata}


def text(value: Any, *, as_json: bool = False) -> str:
    """Write an object the way people do."""
    return json.dumps(value, indent=1) + "\n" if as_json else yaml.safe_dump(value, sort_keys=False)


PODS = st.builds(
    pod,
    memory=st.sampled_from(["4Gi", "512Mi", "1.5G"]),
    **{"gpu-share.io/same-gpu": st.sampled_from(["true", "false"])},
) | st.just(pod(memory=None))
OBJECTS = st.builds(wrapped, st.sampled_from(sorted(WRAPPED)), PODS, st.sampled_from([None, "a", "b"]))
LISTS = st.lists(OBJECTS, max_size=3).map(lambda items: {"apiVersion": "v1", "kind": "List", "items": items})
DOCUMENTS = st.sampled_from(FOREIGN) | st.builds(text, OBJECTS | LISTS, as_json=st.booleans())
STREAMS = st.builds(
    lambda start, documents, separator: start + separator.join(documents),
    st.sampled_from(["", "---\n", "# head\n---\n"]),
    st.lists(DOCUMENTS, max_size=4),
    st.sampled_from(["---\n", "--- # next\n"]),
)
