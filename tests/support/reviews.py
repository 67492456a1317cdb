"""AdmissionReviews as the API server sends them."""

import json
from typing import Any

NAMESPACE = "team"


def pod(**spec: Any) -> dict[str, Any]:
    """A pod that asks for a share."""
    container = {
        "name": "main",
        "image": "registry.example/model:1",
        "env": [{"name": "MODEL", "value": "/models/a"}],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "model-0",
            "namespace": NAMESPACE,
            "labels": {"app": "model"},
            "annotations": {"gpu-share.io/memory": "4Gi", "gpu-share.io/compute": "25%"},
        },
        "spec": {"containers": [container], "restartPolicy": "Always", **spec},
    }


def review(obj: Any = None, **request: Any) -> dict[str, Any]:
    """A review of creating ``obj``, or what ``request`` makes of it."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": "model-0",
            "namespace": NAMESPACE,
            "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["a", "b"]},
            "object": obj,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
            **request,
        },
    }


def as_sent(obj: Any = None, **request: Any) -> bytes:
    """Bytes as Go writes them: compact, with escapes that HTML needs, and a line feed at the end."""
    text = json.dumps(review(obj, **request), separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"{text}\n".encode()


def encoded(obj: Any = None, **request: Any) -> bytes:
    return json.dumps(review(obj, **request)).encode()
