"""The chart on a real API server, by the real helm. There is no node: what its pods would do is run here, as them."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

import pytest

from gpushare.contract import NAMESPACE_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import ADMISSION_V1, CORE_V1, JSON_PATCH, RESOURCE_V1, KubeClient, path
from gpushare_cli.check.installation import as_shipped, compared
from tests.integration.controlplane import manifests, objects, programs
from tests.integration.controlplane.conftest import BUILD
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import refusal, template, until
from tests.support import helm
from tests.testbed.cluster.controlplane import RBAC_V1, ControlPlane
from tests.testbed.cluster.need import require_binaries
from tests.testbed.cluster.processes import end

pytestmark = pytest.mark.controlplane
SYSTEM: Final = helm.SYSTEM
APPS: Final = "/apis/apps/v1"
BATCH: Final = "/apis/batch/v1"
CONFIGURATION: Final = path(ADMISSION_V1, "mutatingwebhookconfigurations", "gpu-share")
JOBS: Final = "app.kubernetes.io/name in (gpu-share-check,gpu-share-uninstall)"
HOOK_SECONDS: Final = {"before": "--timeout=2", "after": "--timeout=30", "check": "--wait=1s"}
"""What each job waits at most: some fail in the end, one waits for the DaemonSet's controller."""
RESCUED: Final = 30.0
"""Seconds within which sharing pods are admitted again."""
OURS: Final = {
    path("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    path("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    path(ADMISSION_V1, "mutatingwebhookconfigurations"),
    path(ADMISSION_V1, "validatingadmissionpolicies"),
    path(ADMISSION_V1, "validatingadmissionpolicybindings"),
    path(RESOURCE_V1, "deviceclasses"),
    path(RESOURCE_V1, "resourceslices"),
    path(RESOURCE_V1, "resourceclaimtemplates"),
    path(CORE_V1, "secrets", namespace=SYSTEM),
    path(CORE_V1, "serviceaccounts", namespace=SYSTEM),
    path(CORE_V1, "services", namespace=SYSTEM),
    path(BATCH, "jobs", namespace=SYSTEM),
    path(APPS, "deployments", namespace=SYSTEM),
    path(APPS, "daemonsets", namespace=SYSTEM),
}


@dataclass(slots=True, kw_only=True)
class Place:
    """A control plane to install the chart on, and an opted-in namespace."""

    plane: ControlPlane
    cluster: KubeClient
    team: str = "team"

    def helm(self, verb: str, *arguments: str) -> str:
        kubeconfig = f"--kubeconfig={self.plane.kubeconfig()}"
        folders = {f"HELM_{kind}_HOME": str(self.plane.root / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        return helm.run(verb, "gpu-share", *arguments, f"--namespace={SYSTEM}", kubeconfig, **folders)

    def install(self, *values: str) -> None:
        self.helm("install", str(helm.CHART), "--create-namespace", "--set=check.enabled=false", *values)
        manifests.wait_for_policies(self.cluster, self.team)

    def left(self) -> list[str]:
        """Everything of ours that is still there."""
        found = [(where, each["metadata"]["name"]) for where in OURS for each in self.cluster.list(where)[0]]
        return sorted(f"{where}/{name}" for where, name in found if "gpu-share" in name)

    def try_pod(self, name: str, memory: str | None = None) -> str:
        """Why a pod may not be created; empty when it may."""
        pod = objects.pod(name, memory)
        pod["spec"]["automountServiceAccountToken"] = False
        where = path(CORE_V1, "pods", namespace=self.team)
        return refusal(lambda: self.cluster.create(where, pod, dryRun="All"))

    def bundle(self) -> str:
        found: str = self.cluster.get(CONFIGURATION)["webhooks"][0]["clientConfig"].get("caBundle", "")
        return found


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    require_binaries()
    helm.need()
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-chart")
    try:
        place = Place(plane=plane, cluster=plane.cluster())
        labels = {NAMESPACE_LABEL: "true"}
        place.cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": place.team, "labels": labels}})
        yield place
    finally:
        plane.stop()


@pytest.fixture
def installed(place: Place) -> Iterator[Place]:
    place.install()
    yield place
    remove(place)


def remove(place: Place) -> None:
    """Uninstall without hooks; a release that is gone is fine."""
    try:
        place.helm("uninstall", "--no-hooks", "--wait")
    except helm.HelmError as error:
        assert "not found" in str(error), error
    for name in ("gpu-share-webhook-tls", "gpu-share-webhook-tls-ca"):
        try:
            place.cluster.delete(path(CORE_V1, "secrets", name, SYSTEM))
        except ClusterError as error:
            assert error.status == 404, error


def names(place: Place, where: str) -> set[str]:
    return {each["metadata"]["name"] for each in place.cluster.list(where)[0]}


def make_certificates(place: Place) -> None:
    kubeconfig = place.plane.service_account(SYSTEM, "gpu-share-certs")
    programs.certs(kubeconfig, place.plane.log("certs"))


def test_everything_is_accepted_by_a_real_api_server_and_no_bundle_is_in_it(installed: Place) -> None:
    assert installed.bundle() == ""
    assert names(installed, path(APPS, "daemonsets", namespace=SYSTEM)) == {"gpu-share-enforcer", "gpu-share-mps"}


@pytest.mark.parametrize(
    "values",
    [
        ["-f", str(helm.CHART / "values-ha.yaml")],
        ["--set", "simulate.enabled=true,enforcer.allowAnyPidNamespace=true,enforcer.enforce=false"],
        ["--set", "runtimeClassName=nvidia,driverRoot=/run/nvidia/driver,global.imageRegistry=mirror.example/x"],
    ],
)
def test_other_values_make_objects_that_the_api_server_knows_field_by_field(place: Place, values: list[str]) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    manifests.apply(place.cluster, [space])
    for item in helm.objects(*values):
        manifests.apply(place.cluster, [item], dryRun="All", fieldValidation="Strict")


@contextmanager
def certificates(place: Place) -> Iterator[None]:
    """Play the node: run what the Deployment gpu-share-certs runs, as its service account."""
    (spec,) = (
        each["spec"]["template"]["spec"]
        for each in place.cluster.list(path(APPS, "deployments", namespace=SYSTEM))[0]
        if each["metadata"]["name"] == "gpu-share-certs"
    )
    kubeconfig = place.plane.service_account(SYSTEM, spec["serviceAccountName"])
    command = [*programs.PRODUCT, *spec["containers"][0]["args"], f"--kubeconfig={kubeconfig}"]
    process = place.plane.add("certs-watch", command, programs.environment())
    try:
        yield
    finally:
        end([process])
        place.plane.drop("certs-watch")


def test_whatever_is_deleted_of_certificates_and_configuration_is_whole_again_in_half_a_minute(
    installed: Place,
) -> None:
    secret = path(CORE_V1, "secrets", "gpu-share-webhook-tls", SYSTEM)

    def whole() -> bool:
        """Whether those who read the configuration accept the pair that the webhook serves with."""
        try:
            return bool(installed.bundle() == installed.cluster.get(secret)["data"]["ca.crt"])
        except ClusterError:
            return False

    def delete_configuration() -> None:
        installed.cluster.delete(CONFIGURATION)
        installed.helm("upgrade", str(helm.CHART))

    def empty_bundle() -> None:
        change = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        installed.cluster.patch(CONFIGURATION, change, JSON_PATCH)

    def delete_secret() -> None:
        installed.cluster.delete(secret)

    with certificates(installed):
        until("everything is made", whole, RESCUED)
        for harm in (*[delete_configuration] * 5, empty_bundle, delete_secret):
            harm()  # it may be mended before we look
            until("everything is whole again", whole, RESCUED)


def test_an_upgrade_and_a_second_applier_leave_the_bundle(installed: Place) -> None:
    make_certificates(installed)
    before = installed.bundle()
    assert before
    installed.helm("upgrade", str(helm.CHART), "--set", "image.tag=9.9.9")
    assert installed.bundle() == before
    manifests.apply(installed.cluster, [o for o in manifests.load() if o["kind"] == "MutatingWebhookConfiguration"])
    assert installed.bundle() == before


NEVER: Final = {"name": "never", "expression": "false"}
CHANGES: Final = {
    path(RESOURCE_V1, "deviceclasses", "gpu-share.io"): (
        {"op": "replace", "path": "/spec/selectors/0/cel/expression", "value": "false"}, "conflict",
    ),
    path(ADMISSION_V1, "validatingadmissionpolicies", "gpu-share-check"): (
        {"op": "add", "path": "/spec/matchConditions/-", "value": NEVER}, "",
    ),
    path(ADMISSION_V1, "validatingadmissionpolicybindings", "gpu-share-last-word"): (
        {"op": "replace", "path": "/spec/validationActions", "value": ["Audit"]}, "",
    ),
    path(ADMISSION_V1, "mutatingwebhookconfigurations", "gpu-share"): (
        {"op": "replace", "path": "/webhooks/0/matchConditions/0", "value": NEVER}, "",
    ),
    path(CORE_V1, "services", "gpu-share-webhook", SYSTEM): (
        {"op": "replace", "path": "/spec/ports/0/port", "value": 8443}, "Duplicate value",
    ),
    path(RBAC_V1, "clusterroles", "gpu-share-webhook"): (
        {"op": "replace", "path": "/rules/0/verbs", "value": ["get"]}, "conflict",
    ),
}  # fmt: skip
"""What kubectl changes, or adds, and how Helm refuses to put it right."""


@pytest.mark.parametrize("where", CHANGES)
def test_the_remedy_of_the_check_restores_what_somebody_changed_with_kubectl(where: str, installed: Place) -> None:
    api, before = installed.cluster, compared(installed.cluster.get(where))
    change, refusal = CHANGES[where]
    api.patch(where, [change], JSON_PATCH, fieldManager="kubectl-patch")
    with pytest.raises(helm.HelmError, match=refusal) if refusal else nullcontext():
        installed.helm("upgrade", str(helm.CHART), "--reuse-values")
    assert compared(api.get(where)) != before, "a plain upgrade does not restore it"
    hint = as_shipped(api, (where.split("/")[-2],)).hint
    for kind, name in (each.split("/") for each in re.findall(r"[a-z]+/gpu-share[a-z.-]*", hint) if "helm" not in each):
        api.delete(f"{where.rpartition('/')[0].rpartition('/')[0]}/{kind}/{name}")
    installed.helm(
        "upgrade", "--install", str(helm.CHART), "--reuse-values", *re.findall(r"--(?:server|force)\S+", hint)
    )
    assert compared(api.get(where)) == before


def test_with_the_webhook_gone_only_sharing_pods_are_refused(installed: Place) -> None:
    """Nothing serves it here from the start: what an outage is like, or a namespace deleted under the configuration."""
    assert "failed calling webhook" in installed.try_pod("sharing", "4Gi")
    assert installed.try_pod("plain") == ""
    other = path(CORE_V1, "namespaces", "passing-by")
    installed.cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": "passing-by"}})
    installed.cluster.delete(other)
    until("a namespace can be deleted meanwhile", lambda: "not found" in refusal(lambda: installed.cluster.get(other)))


def test_uninstalling_without_hooks_leaves_nothing_and_blocks_no_namespace(installed: Place) -> None:
    make_certificates(installed)
    installed.helm("uninstall", "--no-hooks", "--wait")
    until("policies are out of force", lambda: installed.try_pod("sharing", "4Gi") == "")
    assert installed.try_pod("plain") == ""
    secrets = [name for name in installed.left() if "/secrets/" in name]
    assert installed.left() == secrets, "only the hook removes what the programs made"
    installed.cluster.delete(path(CORE_V1, "namespaces", SYSTEM))
    gone = path(CORE_V1, "namespaces", SYSTEM)
    until("our namespace is gone", lambda: "not found" in refusal(lambda: installed.cluster.get(gone)))


def test_uninstalling_is_refused_while_a_claim_is_there_and_else_leaves_nothing(installed: Place) -> None:
    make_certificates(installed)
    claims = path(RESOURCE_V1, "resourceclaims", namespace=installed.team)
    body = {"metadata": {"name": "held"}, "spec": template("x")["spec"]["spec"]}
    installed.cluster.create(claims, body)
    made = template("gpu-share-0123456789abcdef")
    installed.cluster.create(path(RESOURCE_V1, "resourceclaimtemplates", namespace=installed.team), made)
    installed.cluster.create(path(RESOURCE_V1, "resourceslices"), objects.resource_slice("n1", [16384]))
    with jobs_run(installed) as said:
        with pytest.raises(helm.HelmError, match="gpu-share-uninstall-before"):
            installed.helm("uninstall", "--timeout=60s")
        assert "not allocated yet and may get a GPU at any moment: team/held" in said[-1]
        assert installed.cluster.get(CONFIGURATION), "refused before anything was changed"
        rollback = re.search(r"to keep the release instead: helm rollback gpu-share (\d+) --namespace ", said[-1])
        assert rollback, said[-1]
        installed.helm("rollback", rollback[1])
        assert "STATUS: deployed" in installed.helm("status")
        installed.helm("upgrade", str(helm.CHART), "--set", "webhook.logLevel=debug")
        installed.cluster.delete(f"{claims}/held")
        installed.helm("uninstall", "--timeout=60s")
    assert "webhook configuration gpu-share deleted" in said[-2]
    assert "resource slices removed: 1\nclaim templates removed: 1\nSecrets removed: 2" in said[-1]
    until("nothing is left", lambda: installed.left() == [])


def test_an_installation_that_does_not_work_fails_with_what_the_check_found(place: Place) -> None:
    """Nothing runs the webhook here. On a real node the same job is green (tests/e2e)."""
    until("an earlier test has left nothing", lambda: place.left() == [])
    try:
        with jobs_run(place) as said, pytest.raises(helm.HelmError, match="gpu-share-check"):
            place.helm("install", str(helm.CHART), "--create-namespace", "--timeout=60s")
    finally:
        remove(place)
    for line in (
        "webhook replicas: 0 of 2 ready: no sharing pod can be created",
        "sharing pod: refused in namespace team",
    ):
        assert f" {line}" in said[-1], said[-1]
    assert re.search(r" policies and their bindings: \d+ as shipped", said[-1]), said[-1]
    identity = path("/apis/rbac.authorization.k8s.io/v1", "clusterroles", "gpu-share-check")
    assert "not found" in refusal(lambda: place.cluster.get(identity)), "its account is gone with it"


@contextmanager
def jobs_run(place: Place) -> Iterator[list[str]]:
    """Play the node: run each job's program as its service account, and report how it ended."""
    said: list[str] = []
    stopped = threading.Event()
    seen: set[str] = set()

    def play() -> None:
        while not stopped.wait(0.2):
            for pod in place.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM), labelSelector=JOBS)[0]:
                if pod["metadata"]["uid"] not in seen:
                    seen.add(pod["metadata"]["uid"])
                    _run(place, pod, said)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield said
    finally:
        stopped.set()
        thread.join(30)


def _run(place: Place, pod: Object, said: list[str]) -> None:
    spec = pod["spec"]
    arguments = spec["containers"][0]["args"]
    (timeout,) = (option for when, option in HOOK_SECONDS.items() if when in arguments)
    kubeconfig = place.plane.service_account(SYSTEM, spec["serviceAccountName"])
    log = place.plane.log(f"job-{len(said)}")
    command = [*programs.PRODUCT, *arguments, timeout, f"--kubeconfig={kubeconfig}"]
    try:
        programs.run(command, log)
        phase = "Succeeded"
    except AssertionError:
        phase = "Failed"
    said.append(log.read_text())
    print(said[-1])
    where = path(CORE_V1, "pods", pod["metadata"]["name"], SYSTEM) + "/status"
    place.cluster.patch(where, {"status": {"phase": phase}})
