"""Kubernetes objects as the tests need them, as plain dicts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpushare.contract import DRIVER, KIND_GPU, KIND_STATUS, MAX_CLIENTS, MEMORY, NODE_LABEL

Object = dict[str, Any]
HOSTNAME: Final = "kubernetes.io/hostname"
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, memory: str | None = None, *, node: str | None = None, **annotations: str) -> Object:
    """One container ``main`` of which ``memory`` of a GPU is asked for; ``node`` is asked for by a node selector."""
    asked = {**({MEMORY: memory} if memory else {}), **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **({"annotations": asked} if asked else {})},
        "spec": {
            "containers": [{"name": "main", "image": "example.invalid/app:1"}],
            **({"nodeSelector": {HOSTNAME: node}} if node else {}),
        },
    }


def template(source: Object) -> Object:
    """The same as a pod template: what stands in a Deployment or a Job."""
    meta = source["metadata"]
    return {
        "metadata": {"labels": {"app": meta["name"]}, "annotations": meta.get("annotations", {})},
        "spec": source["spec"],
    }


def deployment(source: Object, replicas: int) -> Object:
    """Run a pod several times."""
    name = source["metadata"]["name"]
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": replicas, "selector": selector, "template": template(source)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def job(source: Object) -> Object:
    """Run a pod to its end."""
    inside = template(source)
    inside["spec"] = {**inside["spec"], "restartPolicy": "Never"}
    meta = {"name": source["metadata"]["name"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"backoffLimit": 0, "template": inside}}


def cron_job(source: Object) -> Object:
    """Run a job each minute."""
    inner = job(source)
    spec = {"schedule": "* * * * *", "jobTemplate": {"spec": inner["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": inner["metadata"], "spec": spec}


def stateful_set(source: Object) -> Object:
    """Run a pod under a name that stays."""
    name = source["metadata"]["name"]
    selector = {"matchLabels": {"app": name}}
    spec = {"replicas": 1, "serviceName": name, "selector": selector, "template": template(source)}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name}, "spec": spec}


def node(name: str, labels: Mapping[str, str] | None = None) -> Object:
    """A node that is Ready and shares its GPUs."""
    room = {"cpu": "256", "memory": "1Ti", "pods": "500"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "an API object"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, NODE_LABEL: "true", **(labels or {})}},
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def resource_slice(node_name: str, memories_mib: Sequence[int], *, model: str = "NVIDIA A100-SXM4-16GB") -> Object:
    """The GPUs of a node, written by hand in the form the enforcer publishes; one device per entry, and ``status``."""
    devices = [_gpu(node_name, index, memory, model) for index, memory in enumerate(memories_mib)]
    status = {
        "name": "status",
        "allowMultipleAllocations": True,
        "attributes": {"kind": {"string": KIND_STATUS}},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node_name}-{DRIVER}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [*devices, status],
        },
    }


def _gpu(node_name: str, index: int, memory_mib: int, model: str) -> Object:
    text: Mapping[str, str] = {"kind": KIND_GPU, "uuid": f"GPU-{node_name}-{index}", "model": model}
    memory = f"{memory_mib}Mi"
    one_of = {"default": "1", "validValues": ["1"]}
    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {key: {"string": value} for key, value in text.items()},
        "capacity": {
            "memory": {
                "value": memory,
                "requestPolicy": {"default": memory, "validRange": {"min": "512Mi", "step": "1Mi"}},
            },
            "compute": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}}},
            "clients": {"value": str(MAX_CLIENTS), "requestPolicy": one_of},
        },
    }
