"""``gpu-share check`` on a real API server, as an operator who has ``gpu-share-operator`` and nothing else."""

import json
import subprocess

import pytest

from gpushare.kube_client import APPS_V1, CORE_V1, KubeClient, path
from tests.integration.controlplane import programs
from tests.integration.controlplane.bed import Bed, may
from tests.testbed.cluster.controlplane import RBAC_V1

pytestmark = pytest.mark.controlplane


def check(kubeconfig: str) -> dict[str, tuple[str, str]]:
    """Question → level and detail."""
    command = [*programs.PRODUCT, "check", "--cluster", "-o", "json", "--kubeconfig", kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=programs.environment(), check=False)
    found = json.loads(done.stdout)["checks"]
    return {each["description"]: (each["level"], each["detail"]) for each in found}


def test_an_operator_may_ask_all_but_a_dry_run_and_silent_nodes_are_named(bed: Bed) -> None:
    namespace = bed.namespace("operators")
    bed.cluster.create(path(CORE_V1, "serviceaccounts", namespace=namespace), {"metadata": {"name": "operator"}})
    kubeconfig = bed.plane.service_account(namespace, "operator")
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpu-share-operator"}
    body = {"metadata": {"name": "operator"}, "roleRef": role, "subjects": [subject]}
    bed.cluster.create(path(RBAC_V1, "clusterrolebindings"), body)
    who = KubeClient.connect(str(kubeconfig))
    bed.until("the operator may look at workloads", lambda: may(who, "list", "apps", "daemonsets", ""))
    bed.node("silent", slices=False)
    bed.node("telling", 16384)
    found = check(str(kubeconfig))
    withheld = [name for name, (_, detail) in found.items() if "you may not" in detail]
    assert withheld == ["device taints (DRADeviceTaints)"], "it dry-runs a slice, which takes an administrator"
    assert found["consumable capacity (DRAConsumableCapacity)"] == ("ok", ""), "told from what is published"
    assert "silent" in found["nodes that share their GPUs"][1]
    enforcers = bed.cluster.list(path(APPS_V1, "daemonsets"))[0]
    assert found["enforcers"][0] == ("ok" if enforcers else "wrong")
    for node in ("silent", "telling"):
        bed.cluster.delete(path(CORE_V1, "nodes", node))
    bed.cluster.delete(path(RBAC_V1, "clusterrolebindings", "operator"))
