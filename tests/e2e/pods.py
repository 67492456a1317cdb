"""Tenants as people write them, with a program that takes memory of a simulated GPU."""

from typing import Any, Final

from gpushare.contract import MEMORY
from tests.e2e.version import SIMULATOR_IMAGE

Object = dict[str, Any]
MAIN: Final = "main"
GRACE: Final = 2
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(*program: str, name: str = MAIN, **more: Any) -> Object:
    """A container that runs ``gpu-share-tenant`` with these arguments."""
    return {
        "name": name,
        "image": SIMULATOR_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["gpu-share-tenant", *program],
        "securityContext": dict(RESTRICTED),
        **more,
    }


def idle(name: str) -> Object:
    """A container that does nothing."""
    return {**container(name=name), "command": ["sleep", "3600"]}


def pod(name: str, *program: str, memory: str | None = "2Gi", **annotations: str) -> Object:
    """A pod of one container with a share of that size; annotations by their full keys."""
    asked = {**({MEMORY: memory} if memory else {}), **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": asked},
        "spec": {"containers": [container(*program)], "terminationGracePeriodSeconds": GRACE},
    }


def template(source: Object, **labels: str) -> Object:
    """The same as what stands in a Deployment or a Job."""
    return {"metadata": {"annotations": source["metadata"]["annotations"], "labels": labels}, "spec": source["spec"]}


def deployment(source: Object, replicas: int) -> Object:
    """A Deployment of the pod's name."""
    name = source["metadata"]["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(source, app=name),
        },
    }


def job(source: Object) -> Object:
    """A Job of the pod's name that does not try again."""
    inner = template(source)
    inner["spec"] = {**inner["spec"], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": source["metadata"]["name"]},
        "spec": {"backoffLimit": 0, "template": inner},
    }
