"""The shipped release with its workloads on a control plane, as one thing that tests of ``gpu-share check`` break.

No kubelet runs the pods of these workloads, so they are declared Ready.
"""

import copy
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpushare import contract
from gpushare.kube_client import ADMISSION_V1, APPS_V1, BATCH_V1, CORE_V1, MERGE_PATCH, RESOURCE_V1, KubeClient, path
from gpushare.version import installed
from gpushare_cli.main import main
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import SLICES, SYSTEM, Bed
from tests.testbed.cluster.controlplane import RBAC_V1

NODES: Final = ("check-a", "check-b")
KINDS: Final = ("Deployment", "DaemonSet")
LEFT: Final = (
    (BATCH_V1, "cronjobs"), (BATCH_V1, "jobs"), (APPS_V1, "deployments"), (APPS_V1, "statefulsets"),
    (APPS_V1, "daemonsets"), (APPS_V1, "replicasets"), (CORE_V1, "replicationcontrollers"), (CORE_V1, "pods"),
    (CORE_V1, "resourcequotas"),
)  # fmt: skip
"""What tests leave in their namespaces that check tells of; what makes pods again goes first."""
WEBHOOK: Final = path(ADMISSION_V1, "mutatingwebhookconfigurations", "gpu-share")
POLICIES: Final = path(ADMISSION_V1, "validatingadmissionpolicies")
BINDINGS: Final = path(ADMISSION_V1, "validatingadmissionpolicybindings")
SERVICE: Final = path(CORE_V1, "services", "gpu-share-webhook", SYSTEM)
DEPLOYMENT: Final = path(APPS_V1, "deployments", "gpu-share-webhook", SYSTEM)
ROLE: Final = path(RBAC_V1, "clusterroles", "gpu-share-enforcer")
ROLE_BINDING: Final = path(RBAC_V1, "clusterrolebindings", "gpu-share-webhook")
CLASS: Final = path(RESOURCE_V1, "deviceclasses", "gpu-share.io")
READY: Final = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


@dataclass(slots=True, kw_only=True)
class Release:
    """The shipped release on a control plane, which tests break; ``restore`` makes it whole again."""

    bed: Bed
    namespace: str
    shipped: dict[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> KubeClient:
        return self.bed.cluster

    @property
    def admin(self) -> Path:
        """The kubeconfig of an administrator."""
        return self.bed.plane.kubeconfig()

    def edit(self, where: str, change: Callable[[Any], object]) -> None:
        """Change an object as ``kubectl edit`` does."""
        item = copy.deepcopy(self.cluster.get(where))
        self.shipped.setdefault(where, copy.deepcopy(item))
        change(item)
        self.cluster.replace(where, item)

    def delete(self, where: str) -> None:
        self.shipped.setdefault(where, self.cluster.get(where))
        self.cluster.delete(where, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})

    def report(self, node: str, **changed: Any) -> None:
        """Write the annotation as the enforcer of that node does."""
        body = {"version": installed(), "enforcing": True, "breaker": None, "auditLog": "", "problems": []}
        note = {"metadata": {"annotations": {contract.ENFORCER: json.dumps({**body, **changed})}}}
        self.cluster.patch(path(RESOURCE_V1, SLICES, f"{node}-{contract.DRIVER}"), note, MERGE_PATCH)

    def ready(self) -> bool:
        """Declare all pods of the release Ready, as their kubelets would; false while some are missing."""
        pods = self.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM))[0]
        for pod in pods:
            self.cluster.patch(f"{path(CORE_V1, 'pods', pod['metadata']['name'], SYSTEM)}/status", READY)
        at = [(pod["metadata"]["labels"]["app.kubernetes.io/name"], pod["spec"].get("nodeName")) for pod in pods]
        wanted = {(name, node) for name in ("gpu-share-enforcer", "gpu-share-mps") for node in NODES}
        names = [name for name, _ in at]
        replicas = self.cluster.get(DEPLOYMENT)["spec"]["replicas"]
        return wanted <= {*at} and names.count("gpu-share-webhook") >= replicas and "gpu-share-certs" in names

    def restore(self) -> None:
        for where, item in self.shipped.items():
            found = self.bed.find(where)
            body = {
                **item,
                "metadata": {**item["metadata"], "resourceVersion": (found or item)["metadata"]["resourceVersion"]},
            }
            if found is None:
                for key in ("resourceVersion", "uid", "creationTimestamp", "generation"):
                    body["metadata"].pop(key, None)
                self.cluster.create(where.rpartition("/")[0], body)
            else:
                self.cluster.replace(where, body)
        self.shipped.clear()
        for node in NODES:
            self.report(node)
        self.bed.until("all pods are Ready", self.ready)


@contextmanager
def on_control_plane(bed: Bed) -> Iterator[Release]:
    """Bring the workloads of the release, and two nodes for them.

    The nodes of tests before it are opted out meanwhile. Their pods go, which nobody enforces, and quotas and labels
    that check warns of.
    """
    left = [*bed.cluster.list(path(CORE_V1, "pods"))[0], *bed.cluster.list(path(CORE_V1, "resourcequotas"))[0]]
    for each in {item["metadata"]["namespace"] for item in left}:
        for base, plural in LEFT:
            bed.delete_all(path(base, plural, namespace=each))
    for each in bed.cluster.list(path(CORE_V1, "namespaces"))[0]:
        if each["metadata"]["labels"].get(contract.NAMESPACE_LABEL) not in {None, "true", "false"}:
            labels = {"metadata": {"labels": {contract.NAMESPACE_LABEL: None}}}
            bed.cluster.patch(path(CORE_V1, "namespaces", each["metadata"]["name"]), labels)
    workloads = [each for each in manifests.load() if each["kind"] in KINDS]
    others = [each["metadata"]["name"] for each in bed.cluster.list(path(CORE_V1, "nodes"))[0]]
    label(bed, others, None)
    manifests.apply(bed.cluster, workloads)
    for node in NODES:
        bed.node(node, 16384)
    release = Release(bed=bed, namespace=bed.namespace("check"))
    release.restore()
    yield release
    manifests.delete(bed.cluster, workloads)
    bed.empty(SYSTEM)
    for node in NODES:
        bed.cluster.delete(path(CORE_V1, "nodes", node))
        bed.remove(path(RESOURCE_V1, SLICES, f"{node}-{contract.DRIVER}"))
    label(bed, others, "true")


def label(bed: Bed, nodes: list[str], value: str | None) -> None:
    """Opt nodes of other tests in or out: nothing runs on them."""
    for node in nodes:
        bed.cluster.patch(path(CORE_V1, "nodes", node), {"metadata": {"labels": {contract.NODE_LABEL: value}}})


def check(kubeconfig: Path | str, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and question → level and detail."""
    with redirect_stdout(io.StringIO()) as out:
        code = main(["check", "-o", "json", "--kubeconfig", str(kubeconfig), *options])
    found = json.loads(out.getvalue())
    assert found["ok"] == (code == 0)
    return code, {each["description"]: (each["level"], each["detail"]) for each in found["checks"]}


def unready(release: Release, name: str, node: str) -> None:
    """Take the readiness of a pod; its kubelet is gone, or its container fails."""
    for pod in release.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM))[0]:
        if (pod["metadata"]["labels"]["app.kubernetes.io/name"], pod["spec"].get("nodeName")) == (name, node):
            where = f"{path(CORE_V1, 'pods', pod['metadata']['name'], SYSTEM)}/status"
            release.cluster.patch(where, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})


def scaled_to_nothing(release: Release) -> None:
    release.edit(DEPLOYMENT, lambda item: item["spec"].update(replicas=0))
    gone(release, "gpu-share-webhook")


def gone(release: Release, name: str) -> None:
    """Wait until no pod of a workload stays; a pod without a kubelet is removed for it."""
    selector = {"labelSelector": f"app.kubernetes.io/name={name}"}

    def none() -> bool:
        found = release.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM), **selector)[0]
        for pod in found:
            if "deletionTimestamp" in pod["metadata"]:
                release.bed.delete_pod(SYSTEM, pod["metadata"]["name"])
        return not found

    release.bed.until(f"no pod of {name} is left", none)


def second_driver(cluster: KubeClient, node: str) -> None:
    """Publish a GPU of the node once more, as another driver does."""
    body = objects.resource_slice(node, [16384])
    body["metadata"]["name"] = f"{node}-second"
    body["spec"]["driver"] = "gpu.nvidia.com"
    device = body["spec"]["devices"][0]
    body["spec"]["devices"] = [{"name": device["name"], "attributes": device["attributes"]}]
    cluster.create(path(RESOURCE_V1, SLICES), body)
