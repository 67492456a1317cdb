"""How situations that ``gpu-share explain`` is asked about are made on a real API server, by the tenant's own rights.

A situation returns the words of the command and what it answered. Nodes and what enforcers write are API objects.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from enforcer.quota.from_claims import parse_mib
from gpushare.contract import (
    LIMIT_IN_FORCE,
    MEMORY_MIB,
    SIDECAR,
)
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, PODS, Bed
from tests.integration.controlplane.explaining import GPU, product
from tests.integration.controlplane.objects import Object
from tests.testbed.cluster.controlplane import TENANT

NODE: Final = "explained-node"
GPUS: Final = (1024 * 1024, 16384, 16384, 16384, 16384, 16384, 16384, 16384)
"""One larger than any other of these tests has, so that the largest is known."""
TIME: Final = "2026-11-20T22:20:00Z"
Answer = tuple[list[str], int, str]
SITUATIONS: Final[dict[str, Callable[[Bed], Answer]]] = {}
_VARIABLE: Final = (
    (r"explained-[0-9]+\b", "NAMESPACE"),
    (r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
    (r"  not placed: [0-9]+ node\(s\) didn't match[^\n]*\n    [^\n]*\n", ""),
    (r"not placed: [0-9]+", "not placed: NODES"),
    (r"(-gpu-share-)[a-z0-9]{5}\b", r"\1xxxxx"),
    (r"(MiB of its [0-9]+ MiB on GPU-[a-z0-9-]+)[^\n\"]*", r"\1 (the enforcer's words)"),
    (r"\bworker-[a-z0-9]+(-[a-z0-9]{5})?\b", "worker-xxxxx"),
    (r" +", " "),
)


def normalised(words: list[str], code: int, text: str) -> str:
    """Return a command and its answer without what differs from run to run."""
    whole = f"$ gpu-share {' '.join(words)}\n{text}exit code {code}\n"
    for pattern, stand_in in _VARIABLE:
        whole = re.sub(pattern, stand_in, whole)
    return whole


def situation(made: Callable[[Bed], Answer]) -> Callable[[Bed], Answer]:
    """Add a situation under the name of its function."""
    SITUATIONS[made.__name__.replace("_", "-")] = made
    return made


def ask(bed: Bed, *words: str, reader: str = TENANT) -> Answer:
    """Ask as the tenant, who has the role ``edit`` in the namespace and no other right."""
    code, text = product(bed.plane.kubeconfig(reader), "explain", *words)
    return ["explain", *words], code, text


def node(bed: Bed) -> str:
    """Make the node that pods of situations are placed on, once."""
    if bed.find(path(CORE_V1, "nodes", NODE)) is None:
        bed.node(NODE, *GPUS)
    return NODE


def closed(bed: Bed, **labels: str) -> str:
    """Make a namespace that has not opted in."""
    return bed.namespace("explained", opted_in=False, labels=labels)


def share(bed: Bed, namespace: str, name: str = "asking", memory: str = "4Gi", **annotations: str) -> Object:
    """Create a pod with a share as the tenant does, and wait until it has a node."""
    bed.create(namespace, objects.pod(name, memory, node=node(bed), **annotations))
    return bed.wait_bound(namespace, name)


def without(bed: Bed, namespace: str, memory: str, **annotations: str) -> None:
    """Create a pod that asks for a share where it gets none, and wait until it has a node."""
    bed.create(namespace, objects.pod("asking", memory, node=node(bed), **annotations))
    bed.wait_bound(namespace, "asking")


def prepare(bed: Bed, pod: Object, condition: Mapping[str, str] | None = None, mib: int | None = None) -> None:
    """Write what the driver writes of a claim that it prepared: the amounts on the containers, or ``mib``."""
    claim = bed.claim_of(pod)
    devices = [_entry(pod, each, condition, mib) for each in claim["status"]["allocation"]["devices"]["results"]]
    where = path(RESOURCE_V1, CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
    bed.cluster.patch(f"{where}/status", {"status": {"devices": devices}})


def _entry(pod: Object, result: Object, condition: Mapping[str, str] | None, mib: int | None) -> Object:
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    if result["request"] == SIDECAR:
        return entry
    spec = pod["spec"]
    limits = [
        {"container": each["name"], "memoryMiB": mib or int(variable["value"])}
        for each in [*spec.get("initContainers", []), *spec["containers"]]
        for variable in each.get("env", [])
        if variable["name"] == MEMORY_MIB and _uses(each, result["request"])
    ]
    reserved = parse_mib(result["consumedCapacity"]["memory"])
    data = {"uuid": GPU, "mode": "mps", "memoryMiB": reserved, "limits": limits, "podUid": pod["metadata"]["uid"]}
    conditions = (
        {"conditions": [{"type": LIMIT_IN_FORCE, "lastTransitionTime": TIME, **condition}]} if condition else {}
    )
    return {**entry, **conditions, "data": data}


def _uses(container: Object, request: str) -> bool:
    return any(each.get("request") == request for each in container.get("resources", {}).get("claims", []))


def status(bed: Bed, pod: Object, phase: str, state: Mapping[str, Any], restarts: int = 0, **more: Any) -> None:
    """Write what a kubelet writes of a pod whose containers are all in one state."""
    meta = pod["metadata"]
    statuses = [
        {"name": each["name"], "image": "x", "imageID": "", "ready": False, "restartCount": restarts, "state": state}
        for each in pod["spec"]["containers"]
    ]
    where = path(CORE_V1, PODS, meta["name"], meta["namespace"]) + "/status"
    bed.cluster.patch(where, {"status": {"phase": phase, "containerStatuses": statuses, **more}})


def ended(bed: Bed, pod: Object, phase: str, reason: str, code: int) -> None:
    """End a pod as its kubelet reports it, and wait until its claim is gone, as it then is."""
    claim = bed.claim_of(pod)["metadata"]
    state = {"terminated": {"reason": reason, "exitCode": code, "startedAt": TIME, "finishedAt": TIME}}
    status(bed, pod, phase, state)
    where = path(RESOURCE_V1, CLAIMS, claim["name"], claim["namespace"])
    bed.until("the claim of the pod is gone", lambda: bed.find(where) is None)
