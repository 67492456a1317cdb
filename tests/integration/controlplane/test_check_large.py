"""``gpu-share check`` on a healthy cluster of many nodes and 50 namespaces that opted in: answers, calls and time."""

import io
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final

import pytest

from gpushare import contract
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare_cli.main import main
from tests.integration.controlplane import manifests
from tests.integration.controlplane.bed import OPTED_IN, SLICES, SYSTEM
from tests.integration.controlplane.release import READY, Release
from tests.support import helm
from tests.support.extent import trials

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(400)]
NODES: Final = trials(100, 500)
NAMESPACES: Final = 50
SECONDS: Final = 10.0
WRITERS: Final = 8


@contextmanager
def large(release: Release) -> Iterator[None]:
    """Add nodes with their GPUs, reports and Ready pods, and namespaces."""
    bed, names = release.bed, [f"large-{number:03}" for number in range(NODES)]
    spaces = [f"large-{number:02}" for number in range(NAMESPACES)]
    with ThreadPoolExecutor(WRITERS) as pool:
        try:
            list(pool.map(lambda name: bed.node(name, 16384), names))
            list(pool.map(release.report, names))
            for name in spaces:
                bed.cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": name, "labels": OPTED_IN}})
            bed.until("all pods are made", lambda: len(unready(release)) >= 2 * NODES, 120)
            list(pool.map(lambda where: bed.cluster.patch(f"{where}/status", READY), unready(release)))
            yield
        finally:
            list(pool.map(lambda name: bed.remove(path(CORE_V1, "nodes", name)), names))
            list(pool.map(lambda name: bed.remove(path(RESOURCE_V1, SLICES, f"{name}-{contract.DRIVER}")), names))
            list(pool.map(lambda name: bed.remove(path(CORE_V1, "namespaces", name)), spaces))


def unready(release: Release) -> list[str]:
    """Paths of the pods of the release that have a node and are not Ready."""
    pods = release.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM))[0]
    waiting = [each["metadata"]["name"] for each in pods if each["spec"].get("nodeName") and not is_ready(each)]
    return [path(CORE_V1, "pods", name, SYSTEM) for name in waiting]


def is_ready(pod: Any) -> bool:
    return any((each["type"], each["status"]) == ("Ready", "True") for each in pod["status"].get("conditions", ()))


def test_a_large_cluster_is_checked_in_ten_seconds_and_each_list_read_once(
    installed: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    hooks = [each for each in helm.objects() if each["metadata"]["name"] == "gpu-share-check" and each["kind"] in kinds]
    calls = Counter[tuple[str, str]]()
    send = KubeClient._send

    def counted(self: KubeClient, method: str, where: str, *rest: Any) -> Any:
        calls[method, where] += 1
        return send(self, method, where, *rest)

    manifests.apply(installed.cluster, hooks)
    try:
        kubeconfig = str(installed.bed.plane.service_account(SYSTEM, "gpu-share-check"))
        with large(installed), redirect_stdout(io.StringIO()) as out:
            monkeypatch.setattr(KubeClient, "_send", counted)
            labelled = {"labelSelector": "gpu-share.io/enabled=true"}
            nodes = len(installed.cluster.list(path(CORE_V1, "nodes"), **labelled)[0])
            calls.clear()
            begun, worked = time.monotonic(), time.process_time()
            main(["check", "--cluster", "-o", "json", "--kubeconfig", kubeconfig])
            took, worked = time.monotonic() - begun, time.process_time() - worked
            monkeypatch.undo()
    finally:
        manifests.delete(installed.cluster, hooks)
    found = {each["description"]: (each["level"], each["detail"]) for each in json.loads(out.getvalue())["checks"]}
    reads = {where: number for (method, where), number in calls.items() if method == "GET"}
    print(f"\ncheck of {NODES} nodes and {NAMESPACES} namespaces: {took:.1f} s, {calls.total()} calls")
    assert nodes > NODES
    assert found["enforcers"] == ("ok", f"on {nodes} labelled nodes")
    assert found["nodes for a new share"] == ("ok", f"{nodes} nodes")
    assert "not asked" not in found
    assert {where: number for where, number in reads.items() if number > 1} == {}
    assert worked < SECONDS, "of the command's own processor time: what others take of the machine is not its"
