"""What ``make cluster`` puts on the bare cluster: the product, simulated GPUs, a namespace to use."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpushare.contract import CLAIM, DRIVER, NAMESPACE_LABEL, NODE_LABEL
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.fakes.gpu.publish import publish_nodes
from tests.integration.controlplane.bed import SYSTEM, Bed
from tests.testbed.cluster.binaries import Group, find_all
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.errors import BedError

NAMESPACE: Final = "demo"
NODES: Final = {"gpu-node-1": "quad-16g", "gpu-node-2": "h100x4"}
RETENTION_SECONDS: Final = 60
CHART: Final = Path(__file__).parents[3] / "deploy" / "helm" / "gpu-share"


def install(plane: ControlPlane) -> None:
    """Start two webhook replicas, add nodes whose GPUs are published by the enforcer's own code, opt ``demo`` in."""
    bed = Bed.install(plane, replicas=2, retention=RETENTION_SECONDS)
    for name, machine in NODES.items():
        bed.node(name, slices=False)
        publish_nodes(bed.cluster, [name], machine)
    labels = {NAMESPACE_LABEL: "true"}
    bed.cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": NAMESPACE, "labels": labels}})


def install_chart(plane: ControlPlane, nodes: Sequence[str]) -> None:
    """Install the chart with simulated GPUs on real nodes, and opt ``demo`` in."""
    cluster = plane.cluster()
    for node in nodes:
        cluster.patch(path(CORE_V1, "nodes", node), {"metadata": {"labels": {NODE_LABEL: "true"}}})
    helm = str(find_all(Group.CHART)["helm"])
    where = ["--namespace", SYSTEM, "--create-namespace", "--kubeconfig", str(plane.kubeconfig())]
    command = [helm, "install", "gpu-share", str(CHART), *where, "--set", "simulate.enabled=true", "--wait"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": NAMESPACE, "labels": {NAMESPACE_LABEL: "true"}}})


def placements(cluster: KubeClient) -> list[str]:
    """One line for each sharing pod: namespace, name, node, and the GPU of each sharing container."""
    claims = {claim["metadata"]["uid"]: claim for claim in cluster.list(path(RESOURCE_V1, "resourceclaims"))[0]}
    owners = {_owner(claim): claim for claim in claims.values()}
    rows = [("NAMESPACE", "POD", "NODE", "GPUS")]
    for pod in cluster.list(path(CORE_V1, "pods"))[0]:
        meta = pod["metadata"]
        if any(each["name"] == CLAIM for each in pod["spec"].get("resourceClaims") or []):
            gpus = _gpus(owners.get(meta["uid"]))
            rows.append((meta["namespace"], meta["name"], pod["spec"].get("nodeName", "N/A"), gpus))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _owner(claim: dict[str, Any]) -> str:
    owners = claim["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owners[0]["uid"])


def _gpus(claim: dict[str, Any] | None) -> str:
    allocation = ((claim or {}).get("status") or {}).get("allocation") or {"devices": {"results": []}}
    results = [each for each in allocation["devices"]["results"] if each["driver"] == DRIVER]
    shares = [f"{each['request']}={each['device']}" for each in results if each.get("consumedCapacity")]
    return ",".join(shares) or "N/A"
