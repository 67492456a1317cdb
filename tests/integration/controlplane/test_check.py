"""``gpu-share check`` on a real API server: a healthy release is green, and each sabotage is found with its line.

The release is the shipped one with all its workloads. No kubelet runs their pods, so the tests declare them Ready.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare_cli.check import installation
from gpushare_cli.check.content import compared
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import SLICES, SYSTEM, Bed, may
from tests.integration.controlplane.release import (
    BINDINGS,
    CLASS,
    POLICIES,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    WEBHOOK,
    Release,
    check,
    scaled_to_nothing,
    second_driver,
    unready,
)
from tests.support import helm
from tests.testbed.cluster.controlplane import RBAC_V1, TENANT

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

Change = Callable[[Release], object]


@pytest.fixture(name="release")
def _release(installed: Release, monkeypatch: pytest.MonkeyPatch) -> Iterator[Release]:
    """The release, whole; what is shipped names the address at which this control plane reaches its webhook."""
    ours = installation.shipped
    hook = manifests.control_plane(installed.bed.url)
    configuration = next(each for each in hook if each["kind"] == manifests.WEBHOOK_CONFIGURATION)

    def here(found: installation.Installation) -> dict[str, list[Any]]:
        return {**ours(found), WEBHOOK: [compared(configuration)]}

    monkeypatch.setattr(installation, "shipped", here)
    yield installed
    installed.restore()


def test_a_healthy_release_is_green(release: Release) -> None:
    code, found = check(release.admin, "--cluster", "-n", release.namespace)
    assert [(name, *each) for name, each in found.items() if each[0] == "wrong"] == []
    assert code == 0
    assert {name for name, (level, _) in found.items() if level != "ok"} <= {
        "namespaces that opted in",
        "enforcer reports",
        "GPUs published",
    }, "nodes of other tests have hand-written slices"
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
        "accounts, roles and their bindings", "clusterroles/gpu-share-enforcer: rules",
        lambda r: r.edit(ROLE, lambda item: item["rules"].pop()),
    ),
    "a role has one more right": (
        "accounts, roles and their bindings", "gpu-share-enforcer: rules[0].verbs has 2 entries, and 1 as shipped",
        lambda r: r.edit(ROLE, lambda item: item["rules"][0]["verbs"].append("patch")),
    ),
    "a role's binding is deleted": (
        "accounts, roles and their bindings", "clusterrolebindings/gpu-share-webhook is missing",
        lambda r: r.delete(ROLE_BINDING),
    ),
    "an account is deleted": (
        "accounts, roles and their bindings", "serviceaccounts/gpu-share-enforcer is missing",
        lambda r: r.delete(path(CORE_V1, "serviceaccounts", "gpu-share-enforcer", SYSTEM)),
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
        scaled_to_nothing,
    ),
    "a labelled node has no enforcer": (
        "enforcers", "not ready on 1 node: check-b",
        lambda r: unready(r, "gpu-share-enforcer", "check-b"),
    ),
    "a labelled node has no MPS pod": (
        "MPS pods", "not ready on 1 node: check-a",
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


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_found(name: str, release: Release) -> None:
    question, detail, sabotage = SABOTAGES[name]
    try:
        sabotage(release)
        code, found = check(release.admin, "--cluster", "-n", release.namespace)
    finally:
        release.bed.remove(path(RESOURCE_V1, SLICES, "check-a-second"))
    assert (code, found[question][0]) == (1, "wrong"), found
    assert detail in found[question][1].replace(": spec.", ": ")


def test_a_webhook_that_does_not_answer_is_found_by_trying(release: Release) -> None:
    release.bed.stop_webhooks()
    try:
        code, found = check(release.admin, "--cluster", "-n", release.namespace)
    finally:
        release.bed.start_webhooks()
    assert (code, found["sharing pod"][0]) == (1, "wrong")
    assert "failed calling webhook" in found["sharing pod"][1]


def test_waiting_ends_with_the_repair(release: Release) -> None:
    release.report("check-b", breaker="")
    asked: list[float] = []

    def repair(seconds: float) -> None:
        asked.append(seconds)
        release.report("check-b")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpushare_cli.check.command.time.sleep", repair)
        code, _ = check(release.admin, "--cluster", "--wait", "1m")
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


def test_an_operator_may_ask_all_but_the_dry_runs(release: Release) -> None:
    bed = release.bed
    kubeconfig = account(bed, bed.namespace("operators"), "operator", "gpu-share-operator")
    who = KubeClient.connect(kubeconfig)
    bed.until("the operator may look at workloads", lambda: may(who, "list", "apps", "daemonsets", ""))
    code, found = check(kubeconfig, "--cluster")
    bed.cluster.delete(path(RBAC_V1, "clusterrolebindings", "operator-gpu-share-operator"))
    level, detail = found["not asked"]
    assert (code, level) == (0, "warning")
    assert detail.partition(": ")[0] == "device taints (DRADeviceTaints), sharing pod", detail
    assert found["consumable capacity (DRAConsumableCapacity)"] == ("ok", ""), "known from what is published"
    assert found["accounts, roles and their bindings"][0] == "ok", "the role has all names"


def test_the_account_of_the_job_tries_a_pod_and_creates_none(release: Release) -> None:
    bed = release.bed
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    hooks = [each for each in helm.objects() if each["metadata"]["name"] == "gpu-share-check" and each["kind"] in kinds]
    assert len(hooks) == len(kinds)
    manifests.apply(bed.cluster, hooks)
    try:
        kubeconfig = str(bed.plane.service_account(SYSTEM, "gpu-share-check"))
        who = KubeClient.connect(kubeconfig)
        bed.until("the job may create pods", lambda: may(who, "create", "", "pods", release.namespace))
        code, found = check(kubeconfig, "--cluster")
        assert (code, found["sharing pod"][0]) == (0, "ok"), found
        with pytest.raises(ClusterError, match="by dry run alone"):
            who.create(path(CORE_V1, "pods", namespace=release.namespace), objects.pod("real", "1Gi"))
    finally:
        manifests.delete(bed.cluster, hooks)


def test_a_tenant_learns_which_shares_can_be_had(release: Release) -> None:
    bed = release.bed
    policy = {contract.DEFAULT_MEMORY: "2Gi", contract.MAX_MEMORY: "20Gi", contract.ON_EXCEED: "warn"}
    namespace = bed.namespace("tenants", annotations=policy)
    kubeconfig = str(bed.plane.kubeconfig(TENANT))
    code, found = check(kubeconfig, "-n", namespace)
    level, detail = found["sharing pod"]
    assert (code, level) == (0, "ok"), found
    assert detail.endswith("default 2Gi, at most 20Gi, on exceed: warn")
    assert found.keys() == {"Kubernetes", "sharing pod", "not asked"}
    code, found = check(kubeconfig, "-n", bed.namespace("others", opted_in=False))
    assert (code, found["sharing pod"][0]) == (1, "wrong")
    assert "has not opted in" in found["sharing pod"][1]


def test_before_an_installation_the_cluster_is_asked_what_it_lacks(bed: Bed) -> None:
    node = objects.node("old-node")
    node["status"]["nodeInfo"] = dict.fromkeys(NODE_INFO, "x") | {
        "kubeletVersion": "v1.35.2", "containerRuntimeVersion": "containerd://1.7.2",
    }  # fmt: skip
    bed.cluster.create(path(CORE_V1, "nodes"), node)
    bed.cluster.patch(f"{path(CORE_V1, 'nodes', 'old-node')}/status", {"status": node["status"]})
    code, found = check(bed.plane.kubeconfig(), "--pre")
    bed.cluster.delete(path(CORE_V1, "nodes", "old-node"))
    assert (code, found["kubelets"]) == (1, ("wrong", "older than 1.36: old-node (v1.35.2)"))
    assert found["container runtimes (CDI)"] == ("warning", "CDI is off by default: old-node (containerd://1.7.2)")
    assert "sharing pod" not in found


NODE_INFO: Final = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip
