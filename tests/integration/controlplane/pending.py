"""Pods that wait, one for each cause, made on a real control plane: its own scheduler says why."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpushare.contract import GPU_MODEL, UNHEALTHY
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, SLICES, Bed
from tests.integration.controlplane.objects import Object

POD: Final = "asking"
NO_GPU: Final = "cannot allocate all claims"
GATE: Final = "kueue.x-k8s.io/admission"
COUNTED: Final = f"count/{CLAIMS}.resource.k8s.io"


class Waits(NamedTuple):
    """What Kubernetes then reports, the line of ``gpu-share explain`` about it, and the hint there or below it."""

    words: str
    part: str
    hint: str


PENDING: Final[dict[str, Callable[[Bed, str], Waits]]] = {}
"""By its cause, what makes a pod wait in a namespace."""


def _cause(made: Callable[[Bed, str], Waits]) -> Callable[[Bed, str], Waits]:
    PENDING[made.__name__.replace("_", "-")] = made
    return made


def _node(bed: Bed, cause: str, **spec: Any) -> str:
    name = f"pending-{cause}"
    bed.node(name, 16384)
    if spec:
        bed.cluster.patch(path(CORE_V1, "nodes", name), {"spec": spec})
    return name


def _pod(bed: Bed, namespace: str, node: str | None, memory: str = "4Gi", *, name: str = POD, **more: Any) -> Object:
    body = objects.pod(name, memory, node=node, **more.pop("annotations", {}))
    body["spec"]["containers"][0] |= more.pop("container", {})
    body["spec"] |= more
    return bed.create(namespace, body)


@_cause
def node_selector(bed: Bed, namespace: str) -> Waits:
    _node(bed, "selector")
    _pod(bed, namespace, None, nodeSelector={"disk": "ssd"})
    words = "node(s) didn't match Pod's node affinity/selector"
    return Waits(words, words, "excluded by spec.nodeSelector (disk=ssd) of the pod")


@_cause
def cpu(bed: Bed, namespace: str) -> Waits:
    _pod(bed, namespace, _node(bed, "cpu"), container={"resources": {"requests": {"cpu": "300"}}})
    return Waits("Insufficient cpu", "not placed: 1 Insufficient cpu", "by its GPUs pending-cpu could take the pod")


@_cause
def cordoned(bed: Bed, namespace: str) -> Waits:
    _pod(bed, namespace, _node(bed, "cordoned", unschedulable=True))
    words = "node(s) were unschedulable"
    return Waits(words, words, "pending-cordoned: cordoned, so it takes no new pods; an operator runs kubectl uncordon")


@_cause
def taint(bed: Bed, namespace: str) -> Waits:
    _pod(bed, namespace, _node(bed, "taint", taints=[{"key": "team", "value": "vision", "effect": "NoSchedule"}]))
    words = "node(s) had untolerated taint"
    return Waits(words, words, "pending-taint: the pod does not tolerate the taint team=vision:NoSchedule; add it to")


@_cause
def unhealthy(bed: Bed, namespace: str) -> Waits:
    name = _node(bed, "unhealthy")
    where = path(RESOURCE_V1, SLICES, objects.resource_slice(name, [])["metadata"]["name"])
    spec = bed.cluster.get(where)["spec"]
    spec["devices"][0]["taints"] = [{"key": UNHEALTHY, "value": "CriticalXid", "effect": "NoSchedule"}]
    bed.cluster.patch(where, {"spec": {"devices": spec["devices"]}})
    _pod(bed, namespace, name)
    return Waits(NO_GPU, NO_GPU, "pending-unhealthy: its GPUs get no new shares (CriticalXid)")


@_cause
def model(bed: Bed, namespace: str) -> Waits:
    _pod(bed, namespace, _node(bed, "model"), annotations={GPU_MODEL: "l40"})
    return Waits(NO_GPU, NO_GPU, "pending-model: no GPU is of model l40; there is NVIDIA A100-SXM4-16GB")


@_cause
def never_fits(bed: Bed, namespace: str) -> Waits:
    _pod(bed, namespace, _node(bed, "size"), "4Ti")
    return Waits(NO_GPU, "asks for 4096Gi, and the largest GPU has", "so the pod never fits")


@_cause
def full(bed: Bed, namespace: str) -> Waits:
    name = _node(bed, "full")
    _pod(bed, namespace, name, "13Gi", name="first")
    bed.wait_bound(namespace, "first")
    _pod(bed, namespace, name)
    return Waits(NO_GPU, NO_GPU, "pending-full: container main asks for 4Gi, and no GPU has more than 3Gi free")


@_cause
def gate(bed: Bed, namespace: str) -> Waits:
    _pod(bed, namespace, None, schedulingGates=[{"name": GATE}])
    return Waits("non-empty scheduling gates", f"the pod has a scheduling gate: {GATE}", "Kueue removes it")


@_cause
def quota(bed: Bed, namespace: str) -> Waits:
    body = {"metadata": {"name": "claims"}, "spec": {"hard": {COUNTED: "0"}}}
    where = path(CORE_V1, "resourcequotas", namespace=namespace)
    bed.cluster.create(where, body)
    bed.until("the quota counts", lambda: "hard" in bed.cluster.get(f"{where}/claims").get("status", {}))
    _pod(bed, namespace, _node(bed, "quota"))
    return Waits("exceeded quota", f"ResourceQuota claims allows 0 of {COUNTED}", f"an operator raises {COUNTED}")


def reported(bed: Bed, namespace: str) -> str:
    """Return all that Kubernetes says of the pod: its conditions, and the Events about it."""
    events = bed.cluster.list(path(CORE_V1, "events", namespace=namespace))[0]
    return str([bed.pod(namespace, POD)["status"].get("conditions"), *(each.get("message") for each in events)])


def clear(bed: Bed, namespace: str) -> None:
    """Remove the pods and the nodes again, which other tests share the control plane with."""
    bed.empty(namespace)
    for each in bed.cluster.list(path(CORE_V1, "nodes"))[0]:
        if (name := each["metadata"]["name"]).startswith("pending-"):
            bed.remove(path(CORE_V1, "nodes", name))
            bed.remove(path(RESOURCE_V1, SLICES, objects.resource_slice(name, [])["metadata"]["name"]))
