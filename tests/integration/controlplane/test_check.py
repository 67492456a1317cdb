"""``gpu-share check`` on a real API server: a healthy release is green, and each sabotage is found with its line.

The release is the shipped one with all its workloads. No kubelet runs their pods, so the tests declare them Ready.
"""

import base64
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from certs import pki
from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare_cli.check import installation
from gpushare_cli.check.installation import compared
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import SLICES, SYSTEM, Bed, may
from tests.integration.controlplane.release import WEBHOOK, Release, check
from tests.integration.controlplane.sabotages import SABOTAGES
from tests.support import helm
from tests.testbed.cluster.controlplane import RBAC_V1, TENANT

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]


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
        "sharing pods that do not start",
    }, "nodes of other tests have hand-written slices, and no kubelet starts their pods"
    assert f"test pod in namespace {release.namespace}" in found["sharing pod"][1]
    assert found["enforcers"][1] == "on 2 labelled nodes"


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


def test_a_replica_that_cannot_be_reached_is_found_beside_those_that_answer(release: Release) -> None:
    """It takes connections and answers none, while the API server has connections to others."""
    release.edit(WEBHOOK, lambda item: [each.update(timeoutSeconds=3) for each in item["webhooks"]])
    lost = release.bed.replicas[0].process
    assert lost is not None
    os.killpg(lost.pid, signal.SIGSTOP)
    try:
        code, found = check(release.admin, "--cluster")
    finally:
        os.killpg(lost.pid, signal.SIGCONT)
    assert (code, found["sharing pod"][0]) == (1, "wrong")
    assert "failed calling webhook" in found["sharing pod"][1]


def test_nodes_that_all_keep_shares_away_are_not_green(release: Release) -> None:
    for node in release.cluster.list(path(CORE_V1, "nodes"))[0]:
        release.edit(
            path(CORE_V1, "nodes", node["metadata"]["name"]), lambda item: item["spec"].update(unschedulable=True)
        )
    _, found = check(release.admin, "--cluster", "-n", release.namespace)
    assert found["nodes for a new share"][0] == "warning"


def test_a_quota_without_room_for_a_claim_is_not_green(release: Release) -> None:
    quotas = path(CORE_V1, "resourcequotas", namespace=release.namespace)
    limit = {"metadata": {"name": "none"}, "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "0"}}}
    release.cluster.create(quotas, limit)
    try:
        release.bed.until("it counts", lambda: "used" in release.cluster.list(quotas)[0][0].get("status", {}))
        _, found = check(release.admin, "--cluster", "-n", release.namespace)
    finally:
        release.cluster.delete(f"{quotas}/none")
    level, detail = found["claims in these namespaces"]
    assert level == "warning"
    assert f"{release.namespace}: ResourceQuota none" in detail


@pytest.mark.parametrize("plural", ["resourceclaimtemplates", "resourceclaims"])
def test_a_policy_of_others_that_refuses_claims_is_found_before_a_pod_waits(plural: str, release: Release) -> None:
    meta = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "made-by-people"}}
    rule = {"apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "resources": [plural]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": release.namespace}}
    people = "!request.userInfo.username.startsWith('system:serviceaccount:')"
    constraints = {"namespaceSelector": here, "resourceRules": [{**rule, "operations": ["CREATE"]}]}
    spec = {"matchConstraints": constraints, "validations": [{"expression": people}]}
    bound = {"policyName": "made-by-people", "validationActions": ["Deny"]}
    both = [
        {**meta, "kind": "ValidatingAdmissionPolicy", "spec": spec},
        {**meta, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound},
    ]
    options = ("--cluster", "-n", release.namespace)
    manifests.apply(release.cluster, both)
    try:
        release.bed.until("it is found", lambda: check(release.admin, *options)[1]["sharing pod"][0] == "wrong")
        code, found = check(release.admin, *options)
    finally:
        manifests.delete(release.cluster, both)
    assert code == 1
    assert f"/{plural}: " in found["sharing pod"][1]
    assert "'made-by-people'" in found["sharing pod"][1]
    release.bed.until("it is over", lambda: check(release.admin, *options)[1]["sharing pod"][0] == "ok")


LIVES: Final = {
    "is after": (timedelta(days=-30), timedelta(days=-1)),
    "is before": (timedelta(days=1), timedelta(days=30)),
    "not 127.0.0.1": (timedelta(days=-1), timedelta(days=30)),
}
"""Why the API server refuses a certificate, and when that one is valid; the last has another name."""


@pytest.mark.parametrize("why", LIVES)
@pytest.mark.parametrize("opted_in", [True, False])
def test_a_serving_certificate_that_is_not_valid_is_found(why: str, opted_in: bool, release: Release) -> None:  # noqa: FBT001 - a parameter of the test
    """Also while no namespace has opted in; ``-n`` names one, and else the check of this test sees none."""
    bed = release.bed
    begins, ends = (datetime.now(UTC) + each for each in LIVES[why])
    secret = bed.cluster.get(path(CORE_V1, "secrets", "gpu-share-webhook-tls-ca", SYSTEM))["data"]
    authority = pki.Pair(base64.b64decode(secret["ca.crt"]), base64.b64decode(secret["ca.key"]))
    names = ["IP:127.0.0.2" if why.startswith("not") else "IP:127.0.0.1"]
    bed.stop_webhooks()
    try:
        with presented(pki.issue(authority, names, begins, ends), bed.replicas[0].port), no_opt_in(opted_in=opted_in):
            options = ("-n", release.namespace) if opted_in else ()
            code, found = check(release.admin, "--cluster", *options)
    finally:
        bed.start_webhooks()
    assert (code, found["sharing pod"][0]) == (1, "wrong")
    assert "Secret gpu-share-system/gpu-share-webhook-tls" in found["sharing pod"][1]
    assert why in found["sharing pod"][1]


@contextmanager
def presented(pair: pki.Pair, port: int) -> Iterator[None]:
    """Serve TLS handshakes with a certificate, and nothing else, where a replica of the webhook listened."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        for name, content in (("crt", pair.certificate), ("key", pair.key)):
            (Path(folder) / name).write_bytes(content)
        context.load_cert_chain(f"{folder}/crt", f"{folder}/key")
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=_handshakes, args=(listener, context), daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def _handshakes(listener: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with suppress(OSError), connection:
                context.wrap_socket(connection, server_side=True).close()


@contextmanager
def no_opt_in(*, opted_in: bool) -> Iterator[None]:
    """Have the check see no namespace that opted in, whatever other tests left there."""
    with pytest.MonkeyPatch.context() as patch:
        if not opted_in:
            patch.setattr("gpushare_cli.check.trial._opted_in", lambda *_: iter(()))
        yield


def test_without_an_opted_in_namespace_the_webhook_is_tried_and_nothing_is_created(release: Release) -> None:
    with no_opt_in(opted_in=False):
        level, detail = check(release.admin, "--cluster")[1]["sharing pod"]
    assert (level, "the webhook answers" in detail) == ("warning", True), detail
    left = release.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM))[0]
    assert not [each for each in left if each["metadata"]["name"].startswith("gpu-share-check-")]


def test_without_an_opted_in_namespace_a_webhook_that_is_away_is_found(release: Release) -> None:
    release.bed.stop_webhooks()
    try:
        with no_opt_in(opted_in=False):
            code, found = check(release.admin, "--cluster")
    finally:
        release.bed.start_webhooks()
    assert (code, found["sharing pod"][0]) == (1, "wrong"), found["sharing pod"]


def test_real_pods_of_the_releases_namespace_are_not_asked_about(release: Release) -> None:
    release.bed.stop_webhooks()
    pod = objects.pod("gpu-share-check-real", "1Gi")
    try:
        release.cluster.create(path(CORE_V1, "pods", namespace=SYSTEM), pod)
    finally:
        release.bed.start_webhooks()
        release.bed.delete_pod(SYSTEM, "gpu-share-check-real")


def test_a_taint_rule_on_our_gpus_is_shown(release: Release) -> None:
    taint = {"key": "example.com/repair", "value": "fan", "effect": "NoSchedule"}
    selector = {"driver": contract.DRIVER, "pool": "check-a"}
    body = {"metadata": {"name": "repair"}, "spec": {"deviceSelector": selector, "taint": taint}}
    where = path(RESOURCE_V1, "devicetaintrules")
    try:
        release.cluster.create(where, body)
    except ClusterError as error:
        assert error.status == HTTPStatus.NOT_FOUND, "Kubernetes 1.36 does not serve v1"
        assert check(release.admin, "--cluster")[1]["DeviceTaintRules"] == ("ok", "none")
        return
    try:
        found = check(release.admin, "--cluster")[1]["DeviceTaintRules"]
    finally:
        release.cluster.delete(f"{where}/repair")
    assert found == ("warning", "repair (example.com/repair=fan:NoSchedule on pool check-a)")


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
        assert (code, found["sharing pod"][0] in {"ok", "warning"}) == (0, True), found  # some of other tests refuse
        assert "not asked" not in found, "it has each right that the check needs"
        for where, body in real_objects(release.namespace):
            with pytest.raises(ClusterError, match="only by dry run"):
                who.create(where, body)
    finally:
        manifests.delete(bed.cluster, hooks)


def real_objects(namespace: str) -> list[tuple[str, dict[str, Any]]]:
    """One object of each kind that the check tries."""
    template = {"metadata": {"name": "real"}, "spec": {"spec": {"devices": {}}}}
    return [
        (path(CORE_V1, "pods", namespace=namespace), objects.pod("real", "1Gi")),
        (path(RESOURCE_V1, "resourceclaimtemplates", namespace=namespace), template),
        (path(RESOURCE_V1, SLICES), objects.resource_slice("real", [1024])),
    ]


def test_a_tenant_finds_which_shares_can_be_had(release: Release) -> None:
    bed = release.bed
    policy = {contract.DEFAULT_MEMORY: "2Gi", contract.MAX_MEMORY: "20Gi", contract.ON_EXCEED: "warn"}
    namespace = bed.namespace("tenants", annotations=policy)
    kubeconfig = str(bed.plane.kubeconfig(TENANT))
    code, found = check(kubeconfig, "-n", namespace)
    level, detail = found["sharing pod"]
    assert (code, level) == (0, "ok"), found
    assert detail.endswith("default 2Gi, at most 20Gi, over quota: warn")
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
    assert found["container runtimes (CDI)"] == (
        "warning",
        "CDI is off by default before containerd 2.0: old-node (containerd://1.7.2)",
    )
    assert "sharing pod" not in found


NODE_INFO: Final = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip
