"""A cluster's objects as an API server has them, as JSON: so many nodes, sharing pods, their claims and templates.

Made, not recorded: every object is one that the product or a controller made once, with another name and UID each time.
"""

import copy
import json
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from gpushare.contract import CLAIM, NAMESPACE_LABEL
from gpushare.namespace_policy import NamespacePolicy
from tests.load.bench.pods import pods
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

Object = dict[str, Any]
SIZES: Final = (1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
"""MiB; pods have them in turn."""
WHEN: Final = "2026-11-22T10:00:00Z"
NAMESPACE, NAME, UID, NODE = "qq-namespace", "qq-name", "qq-uid", "qq-node"


@dataclass(frozen=True)
class Fleet:
    """``apart``: each pod has a template of its own, which is the most there can be."""

    nodes: int
    pods: int
    apart: bool = False

    @cached_property
    def namespaces(self) -> int:
        """One for ten nodes, at least four."""
        return max(4, self.nodes // 10)

    def size(self, number: int) -> int:
        """MiB that a pod asks for."""
        return 1024 + number if self.apart else SIZES[number // self.namespaces % len(SIZES)]

    def namespace_of(self, number: int) -> str:
        """The namespace of a pod."""
        return f"team-{number % self.namespaces:04}"

    def pod(self, number: int) -> bytes:
        """A pod that runs, as it is stored."""
        return _named(_pod(self.size(number)), self.namespace_of(number), f"model-{number:06}", number, self.nodes)

    def claim(self, number: int) -> bytes:
        """The claim that was made for a pod."""
        name = f"model-{number:06}-gpu-share-x2v5q"
        return _named(_claim(self.size(number)), self.namespace_of(number), name, number, self.nodes)

    @cached_property
    def templates(self) -> list[tuple[str, int]]:
        """Namespace and size of each template."""
        return list(dict.fromkeys((self.namespace_of(number), self.size(number)) for number in range(self.pods)))

    def template(self, number: int) -> bytes:
        """A template as it is stored."""
        namespace, size = self.templates[number]
        body = _template(size)
        return _named(json.dumps(_stored(body)), namespace, body["metadata"]["name"], number, self.nodes)

    def namespace(self, number: int) -> bytes:
        """A namespace that takes part."""
        labels = {NAMESPACE_LABEL: "true", "team": "asr", "kubernetes.io/metadata.name": NAME}
        annotations = {"gpu-share.io/max-memory": "80Gi", "gpu-share.io/grace-period": "10s", "owner": "x" * 100}
        body = {"metadata": _metadata(labels, annotations), "spec": {"finalizers": ["kubernetes"]}}
        return _named(json.dumps(body), "", f"team-{number:04}", number, self.nodes)


def _metadata(labels: Object, annotations: Object) -> Object:
    """With who owns what in it, which is a third of a stored object."""
    owned: Object = {f"f:{key}": {} for key in (*labels, *annotations)}
    entry: Object = {"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": WHEN}
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": owned, "f:labels": owned}}}
    return {
        "name": NAME, "namespace": NAMESPACE, "uid": UID, "resourceVersion": "1000", "creationTimestamp": WHEN,
        "labels": labels, "annotations": annotations, "managedFields": [entry],
    }  # fmt: skip


@cache
def _rewritten(size: int) -> Object:
    pod = copy.deepcopy(pods()["typical"])
    pod["metadata"]["annotations"]["gpu-share.io/memory"] = f"{size}Mi"
    return dict(mutate_pod(pod, policy=NamespacePolicy(), settings=Settings()).pod)


@cache
def _template(size: int) -> Object:
    body = template_for(_rewritten(size))
    assert body is not None
    return body


@cache
def _pod(size: int) -> str:
    pod = _rewritten(size)
    metadata = _metadata(pod["metadata"]["labels"], pod["metadata"]["annotations"])
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    owned: Object = {f'k:{{"name":"{each["name"]}"}}': {f"f:{key}": {} for key in each} for each in containers}
    spec = {"f:containers": owned, "f:restartPolicy": {}, "f:schedulerName": {}, "f:volumes": owned}
    metadata["managedFields"][0]["fieldsV1"]["f:spec"] = spec
    status = {
        "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "qosClass": "Burstable", "startTime": WHEN,
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": WHEN}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "containerStatuses": [
            {"name": each["name"], "image": "registry.example/model:1", "imageID": f"sha256:{'a' * 64}", "ready": True,
             "containerID": f"containerd://{'b' * 64}", "restartCount": 0, "state": {"running": {"startedAt": WHEN}}}
            for each in containers
        ],
        "resourceClaimStatuses": [{"name": CLAIM, "resourceClaimName": f"{NAME}-gpu-share-x2v5q"}],
    }  # fmt: skip
    return json.dumps({"metadata": metadata, "spec": {**pod["spec"], "nodeName": NODE}, "status": status})


@cache
def _claim(size: int) -> str:
    metadata = _metadata({}, {"resource.kubernetes.io/pod-claim-name": CLAIM})
    spec = _stored(_template(size))["spec"]["spec"]
    results = [
        {"request": each["name"], "driver": "gpu-share.io", "pool": NODE, "device": "gpu-0", "shareID": UID,
         "consumedCapacity": {"memory": f"{size}Mi", "compute": "25", "clients": "1"}}
        for each in spec["devices"]["requests"]
    ]  # fmt: skip
    users = [{"resource": "pods", "name": NAME, "uid": UID}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    return json.dumps({"metadata": metadata, "spec": spec, "status": status})


def _stored(body: Object) -> Object:
    """A template with what the API server fills in."""
    made: Object = copy.deepcopy(body)
    for each in made["spec"]["spec"]["devices"]["requests"]:
        each["exactly"] |= {"allocationMode": "ExactCount", "count": 1}
    return made | {"metadata": _metadata(made["metadata"]["labels"], {})}


def _named(text: str, namespace: str, name: str, number: int, nodes: int) -> bytes:
    uid = f"{number:08x}-6393-41e8-b7cc-42010a800002"
    text = text.replace(NAMESPACE, namespace).replace(UID, uid).replace(NODE, f"node-{number % nodes:05}")
    return text.replace(NAME, name).encode()
