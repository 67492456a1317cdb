"""``gpu-share check`` on a real API server: a healthy release is green, and each sabotage is found with its line.

The release is the shipped one with all its workloads. No kubelet runs their pods, so the tests declare them Ready.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import ADMISSION_V1, APPS_V1, CORE_V1, MERGE_PATCH, RESOURCE_V1, Cluster, path
from gpushare_cli.check import installation
from gpushare_cli.main import main
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import SLICES, SYSTEM, Bed, may
from tests.support import helm
from tests.testbed.cluster.controlplane import RBAC_V1, TENANT

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

NODES: Final = ("check-a", "check-b")
KINDS: Final = ("Deployment", "DaemonSet")
WEBHOOK: Final = path(ADMISSION_V1, "mutatingwebhookconfigurations", "gpu-share")
POLICIES: Final = path(ADMISSION_V1, "validatingadmissionpolicies")
BINDINGS: Final = path(ADMISSION_V1, "validatingadmissionpolicybindings")
SERVICE: Final = path(CORE_V1, "services", "gpu-share-webhook", SYSTEM)
DEPLOYMENT: Final = path(APPS_V1, "deployments", "gpu-share-webhook", SYSTEM)
ROLE: Final = path(RBAC_V1, "clusterroles", "gpu-share-agent")
ROLE_BINDING: Final = path(RBAC_V1, "clusterrolebindings", "gpu-share-webhook")
CLASS: Final = path(RESOURCE_V1, "deviceclasses", "gpu-share.io")
READY: Final = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
Change = Callable[["Release"], object]


@dataclass(slots=True, kw_only=True)
class Release:
    """The shipped release on a control plane, which tests break; ``restore`` makes it whole again."""

    bed: Bed
    namespace: str
    shipped: dict[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        return self.bed.cluster

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
        body = {"version": installation.installed(), "enforcing": True, "breaker": None, "auditLog": "", "problems": []}
        note = {"metadata": {"annotations": {contract.ENFORCER: json.dumps({**body, **changed})}}}
        self.cluster.patch(path(RESOURCE_V1, SLICES, f"{node}-{contract.DRIVER}"), note, MERGE_PATCH)

    def ready(self) -> bool:
        """Declare all pods of the release Ready, as their kubelets would; false while some are missing."""
        pods = self.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM))[0]
        for pod in pods:
            self.cluster.patch(f"{path(CORE_V1, 'pods', pod['metadata']['name'], SYSTEM)}/status", READY)
        at = {(pod["metadata"]["labels"]["app.kubernetes.io/name"], pod["spec"].get("nodeName")) for pod in pods}
        wanted = {(name, node) for name in ("gpu-share-agent", "gpu-share-mps") for node in NODES}
        return wanted <= at and sum(name == "gpu-share-webhook" for name, _ in at) >= 1 and len(pods) >= 6

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


@pytest.fixture(scope="module", name="installed")
def _installed(bed: Bed) -> Iterator[Release]:
    workloads = [each for each in manifests.load() if each["kind"] in KINDS]
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


@pytest.fixture(name="release")
def _release(installed: Release, monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """The release, whole; what is shipped names the address at which this control plane reaches its webhook."""
    ours = installation.shipped
    hook = manifests.control_plane(installed.bed.url)
    configuration = next(each for each in hook if each["kind"] == manifests.WEBHOOK_CONFIGURATION)

    def here(found: installation.Installation) -> dict[str, list[Any]]:
        return {**ours(found), WEBHOOK: [installation.compared(configuration)]}

    monkeypatch.setattr(installation, "shipped", here)
    yield installed
    installed.restore()


def check(capsys: pytest.CaptureFixture[str], bed: Bed, *options: str, kubeconfig: str = "") -> tuple[int, Any]:
    """Exit code, and question → level and detail."""
    capsys.readouterr()
    code = main(["check", "-o", "json", "--kubeconfig", kubeconfig or str(bed.plane.kubeconfig()), *options])
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (code == 0)
    return code, {each["description"]: (each["level"], each["detail"]) for each in found["checks"]}


def test_a_healthy_release_is_green(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = check(capsys, release.bed, "--cluster", "-n", release.namespace)
    assert [(name, *each) for name, each in found.items() if each[0] == "wrong"] == []
    assert code == 0
    assert {name for name, (level, _) in found.items() if level != "ok"} <= {"namespaces that opted in"}
    assert f"rewritten in namespace {release.namespace}" in found["sharing pod"][1]
    assert found["enforcers"][1] == "on 2 labelled nodes"


def first_rule(item: Any) -> Any:
    return item["webhooks"][0]


SABOTAGES: Final[dict[str, tuple[str, str, Change]]] = {
    "the Service has a wrong port": (
        "webhook configuration and Service", "services/gpu-share-webhook: ports[0].targetPort is 'http'",
        lambda r: r.edit(SERVICE, lambda item: item["spec"]["ports"][0].update(targetPort="http")),
    ),
    "the Service selects nothing": (
        "webhook configuration and Service", "services/gpu-share-webhook: selector",
        lambda r: r.edit(SERVICE, lambda item: item["spec"]["selector"].update(app="other")),
    ),
    "a binding is deleted": (
        "policies and their bindings", "validatingadmissionpolicybindings/gpu-share-last-word is missing",
        lambda r: r.delete(f"{BINDINGS}/gpu-share-last-word"),
    ),
    "a binding audits": (
        "policies and their bindings", "gpu-share-slices: validationActions[0] is 'Audit', and 'Deny' as shipped",
        lambda r: r.edit(f"{BINDINGS}/gpu-share-slices", lambda item: item["spec"].update(validationActions=["Audit"])),
    ),
    "a binding matches nothing": (
        "policies and their bindings", "gpu-share-frozen: matchResources is",
        lambda r: r.edit(f"{BINDINGS}/gpu-share-frozen", lambda item: item["spec"].update(
            matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}})),
    ),
    "an expression is edited": (
        "policies and their bindings", "gpu-share-last-word: validations[2].expression is 'true'",
        lambda r: r.edit(
            f"{POLICIES}/gpu-share-last-word", lambda item: item["spec"]["validations"][2].update(expression="true")),
    ),
    "a policy has another condition": (
        "policies and their bindings", "gpu-share-namespaces: matchConditions",
        lambda r: r.edit(f"{POLICIES}/gpu-share-namespaces", lambda item: item["spec"].setdefault(
            "matchConditions", []).append({"name": "never", "expression": "false"})),
    ),
    "a policy fails open": (
        "policies and their bindings", "gpu-share-claims: failurePolicy is 'Ignore'",
        lambda r: r.edit(f"{POLICIES}/gpu-share-claims", lambda item: item["spec"].update(failurePolicy="Ignore")),
    ),
    "the webhook fails open": (
        "webhook configuration and Service", "webhooks[0].failurePolicy is 'Ignore', and 'Fail' as shipped",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item).update(failurePolicy="Ignore")),
    ),
    "the webhook skips namespaces": (
        "webhook configuration and Service", "webhooks[0].namespaceSelector.matchLabels",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item)["namespaceSelector"]["matchLabels"].update(team="a")),
    ),
    "the webhook skips pods": (
        "webhook configuration and Service", "webhooks[0].objectSelector",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item).update(objectSelector={"matchLabels": {"a": "b"}})),
    ),
    "a rule of a role is removed": (
        "accounts, roles and their bindings", "clusterroles/gpu-share-agent: rules",
        lambda r: r.edit(ROLE, lambda item: item["rules"].pop()),
    ),
    "a role has one more right": (
        "accounts, roles and their bindings", "clusterroles/gpu-share-agent: rules[0].verbs has 2 entries, and 1 as shipped",
        lambda r: r.edit(ROLE, lambda item: item["rules"][0]["verbs"].append("patch")),
    ),
    "a role's binding is deleted": (
        "accounts, roles and their bindings", "clusterrolebindings/gpu-share-webhook is missing",
        lambda r: r.delete(ROLE_BINDING),
    ),
    "an account is deleted": (
        "accounts, roles and their bindings", "serviceaccounts/gpu-share-agent is missing",
        lambda r: r.delete(path(CORE_V1, "serviceaccounts", "gpu-share-agent", SYSTEM)),
    ),
    "a node publishes nothing": (
        "nodes that share their GPUs", "2; without a ResourceSlice: check-b",
        lambda r: r.delete(path(RESOURCE_V1, SLICES, f"check-b-{contract.DRIVER}")),
    ),
    "a DeviceClass is missing": (
        "DeviceClasses", "deviceclasses/gpu-share.io is missing",
        lambda r: r.delete(CLASS),
    ),
    "the caBundle is gone": (
        "webhook certificate", "gpu-share has no caBundle",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item)["clientConfig"].pop("caBundle")),
    ),
    "the webhook configuration is gone": (
        "webhook certificate", "not there", lambda r: r.delete(WEBHOOK),
    ),
    "the webhook is scaled to nothing": (
        "webhook replicas", "0 of 0 ready",
        lambda r: (r.edit(DEPLOYMENT, lambda item: item["spec"].update(replicas=0)), gone(r, "gpu-share-webhook")),
    ),
    "a labelled node has no enforcer": (
        "enforcers", "1 of 2 labelled nodes without a ready enforcer: check-b",
        lambda r: unready(r, "gpu-share-agent", "check-b"),
    ),
    "a labelled node has no MPS pod": (
        "MPS pods", "1 of 2 labelled nodes without a ready gpu-share-mps pod: check-a",
        lambda r: unready(r, "gpu-share-mps", "check-a"),
    ),
    "the circuit breaker is open": (
        "enforcer reports", "check-b: circuit breaker open since 2026-11-24T10:00:00Z: nothing is killed",
        lambda r: r.report("check-b", breaker="2026-11-24T10:00:00Z"),
    ),
    "the audit log cannot be written": (
        "enforcer reports", "check-a: audit log: no space left on device",
        lambda r: r.report("check-a", auditLog="no space left on device"),
    ),
    "an enforcer has a problem": (
        "enforcer reports", "check-a: NVML is away", lambda r: r.report("check-a", problems=["NVML is away"]),
    ),
    "an enforcer is newer than the webhook": (
        "versions", "not supported beside this webhook: check-a (99.1.0)",
        lambda r: r.report("check-a", version="99.1.0"),
    ),
    "a second driver publishes the GPU": (
        "GPUs of two drivers", "check-a: gpu-0 of gpu.nvidia.com", lambda r: second_driver(r.cluster, "check-a"),
    ),
}  # fmt: skip


def unready(release: Release, name: str, node: str) -> None:
    """Take the readiness of a pod; its kubelet is gone, or its container fails."""
    for pod in release.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM))[0]:
        if (pod["metadata"]["labels"]["app.kubernetes.io/name"], pod["spec"].get("nodeName")) == (name, node):
            where = f"{path(CORE_V1, 'pods', pod['metadata']['name'], SYSTEM)}/status"
            release.cluster.patch(where, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}})


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


def second_driver(cluster: Cluster, node: str) -> None:
    """Publish a GPU of the node once more, as another driver does."""
    body = objects.resource_slice(node, [16384])
    body["metadata"]["name"] = f"{node}-second"
    body["spec"]["driver"] = "gpu.nvidia.com"
    device = body["spec"]["devices"][0]
    body["spec"]["devices"] = [{"name": device["name"], "attributes": device["attributes"]}]
    cluster.create(path(RESOURCE_V1, SLICES), body)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_found(name: str, release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    question, detail, sabotage = SABOTAGES[name]
    try:
        sabotage(release)
        code, found = check(capsys, release.bed, "--cluster", "-n", release.namespace)
    finally:
        release.bed.remove(path(RESOURCE_V1, SLICES, "check-a-second"))
    assert (code, found[question][0]) == (1, "wrong"), found
    assert detail in found[question][1].replace(": spec.", ": ")


def test_a_webhook_that_does_not_answer_is_found_by_trying(
    release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    release.bed.stop_webhooks()
    try:
        code, found = check(capsys, release.bed, "--cluster", "-n", release.namespace)
    finally:
        release.bed.start_webhooks()
    assert (code, found["sharing pod"][0]) == (1, "wrong")
    assert "failed calling webhook" in found["sharing pod"][1]


def test_waiting_ends_with_the_repair(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    release.report("check-b", breaker="")
    asked: list[float] = []

    def repair(seconds: float) -> None:
        asked.append(seconds)
        release.report("check-b")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpushare_cli.check.command.time.sleep", repair)
        code, _ = check(capsys, release.bed, "--cluster", "--wait", "1m")
    assert (code, len(asked)) == (0, 1)


def account(bed: Bed, namespace: str, name: str, *roles: str) -> str:
    """A service account with these ClusterRoles in the whole cluster; returns its kubeconfig."""
    bed.cluster.create(path(CORE_V1, "serviceaccounts", namespace=namespace), {"metadata": {"name": name}})
    for role in roles:
        subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": f"{name}-{role}"}, "roleRef": reference, "subjects": [subject]}
        bed.cluster.create(path(RBAC_V1, "clusterrolebindings"), body)
    return str(bed.plane.service_account(namespace, name))


def test_an_operator_may_ask_all_but_the_dry_runs(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    bed = release.bed
    kubeconfig = account(bed, bed.namespace("operators"), "operator", "gpu-share-operator")
    who = Cluster.connect(kubeconfig)
    bed.until("the operator may look at workloads", lambda: may(who, "list", "apps", "daemonsets", ""))
    code, found = check(capsys, bed, "--cluster", kubeconfig=kubeconfig)
    bed.cluster.delete(path(RBAC_V1, "clusterrolebindings", "operator-gpu-share-operator"))
    level, detail = found["not asked"]
    assert (code, level) == (0, "warning")
    assert detail.partition(": ")[0] == "device taints (DRADeviceTaints), sharing pod", detail
    assert found["consumable capacity (DRAConsumableCapacity)"] == ("ok", ""), "known from what is published"
    assert found["accounts, roles and their bindings"][0] == "ok", "the role has all names"


def test_the_account_of_the_job_tries_a_pod_and_creates_none(
    release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = release.bed
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    hooks = [each for each in helm.objects() if each["metadata"]["name"] == "gpu-share-check" and each["kind"] in kinds]
    assert len(hooks) == len(kinds)
    manifests.apply(bed.cluster, hooks)
    try:
        kubeconfig = str(bed.plane.service_account(SYSTEM, "gpu-share-check"))
        who = Cluster.connect(kubeconfig)
        bed.until("the job may create pods", lambda: may(who, "create", "", "pods", release.namespace))
        code, found = check(capsys, bed, "--cluster", kubeconfig=kubeconfig)
        assert (code, found["sharing pod"][0]) == (0, "ok"), found
        with pytest.raises(ClusterError, match="by dry run alone"):
            who.create(path(CORE_V1, "pods", namespace=release.namespace), objects.pod("real", "1Gi"))
    finally:
        manifests.delete(bed.cluster, hooks)


def test_a_tenant_is_told_which_shares_can_be_had(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    bed = release.bed
    policy = {contract.DEFAULT_MEMORY: "2Gi", contract.MAX_MEMORY: "20Gi", contract.ON_EXCEED: "warn"}
    namespace = bed.namespace("tenants", annotations=policy)
    kubeconfig = str(bed.plane.kubeconfig(TENANT))
    code, found = check(capsys, bed, "-n", namespace, kubeconfig=kubeconfig)
    level, detail = found["sharing pod"]
    assert (code, level) == (0, "ok"), found
    assert detail.endswith("default 2Gi, at most 20Gi, on exceed: warn")
    assert found.keys() == {"Kubernetes", "sharing pod", "not asked"}
    code, found = check(capsys, bed, "-n", bed.namespace("others", opted_in=False), kubeconfig=kubeconfig)
    assert (code, found["sharing pod"][0]) == (1, "wrong")
    assert "has not opted in" in found["sharing pod"][1]


def test_before_an_installation_the_cluster_is_asked_what_it_lacks(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    node = objects.node("old-node")
    node["status"]["nodeInfo"] = dict.fromkeys(NODE_INFO, "x") | {
        "kubeletVersion": "v1.35.2", "containerRuntimeVersion": "containerd://1.7.2",
    }  # fmt: skip
    bed.cluster.create(path(CORE_V1, "nodes"), node)
    bed.cluster.patch(f"{path(CORE_V1, 'nodes', 'old-node')}/status", {"status": node["status"]})
    code, found = check(capsys, bed, "--pre")
    bed.cluster.delete(path(CORE_V1, "nodes", "old-node"))
    assert (code, found["kubelets"]) == (1, ("wrong", "older than 1.36: old-node (v1.35.2)"))
    assert found["container runtimes (CDI)"] == ("warning", "CDI is off by default: old-node (containerd://1.7.2)")
    assert "sharing pod" not in found


NODE_INFO: Final = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip
