"""Whoever may do everything in one namespace is neither the scheduler nor an operator of the cluster."""

import pytest

from gpushare.contract import DRIVER, MAX_MEMORY, NAMESPACE_LABEL, RESIZE_OF
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from tests.integration.controlplane import manifests
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.test_claims import PROTECTION, STAYS, claimed, finalizers
from tests.integration.controlplane.policies.world import Acting, World, refusal, rewritten, share, template, until
from tests.testbed.cluster.controlplane import RBAC_V1

pytestmark = pytest.mark.controlplane
ALLOCATES = "resourceclaims/binding"
"""What Kubernetes 1.36 and newer ask for, in the whole cluster."""
OTHER = "example.com/gpu"
ASKING = {"name": "main", "image": "example.invalid/app:1", "resources": {"limits": {OTHER: "1"}}}
CLAIMS = [{"name": "gpu-share", "resourceClaimName": "its-own"}]
EXTENDED = {
    "resourceClaimName": "of-the-scheduler",
    "requestMappings": [{"containerName": "main", "resourceName": OTHER, "requestName": "container-0-request-0"}],
}


@pytest.fixture(scope="module")
def owner(world: World) -> KubeClient:
    return owner_of(world, world.namespace)


def owner_of(world: World, namespace: str) -> KubeClient:
    """Give a user a Role over everything in a namespace."""
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    world.cluster.create(
        path(RBAC_V1, "roles", namespace=namespace), {"metadata": {"name": "own"}, "rules": everything}
    )
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "owner"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "own"}
    body = {"metadata": {"name": "own"}, "roleRef": role, "subjects": [subject]}
    world.cluster.create(path(RBAC_V1, "rolebindings", namespace=namespace), body)
    found = Acting.as_user(world.plane, "owner")
    until("the role works", lambda: refusal(lambda: found.get(world.templates(namespace=namespace))) == "")
    return found


def status(allocation: Object | None, users: list[Object] | None = None) -> Object:
    return {"status": {"allocation": allocation, "reservedFor": users}}


def test_the_finalizer_of_an_allocated_claim_stays(world: World, owner: KubeClient) -> None:
    where = claimed(world, "owned")
    assert STAYS in refusal(lambda: owner.patch(where, finalizers()))
    owner.patch(f"{where}/status", finalizers())
    assert PROTECTION in world.cluster.get(where)["metadata"]["finalizers"]


def test_no_allocation_is_written(world: World, owner: KubeClient) -> None:
    where = path(RESOURCE_V1, "resourceclaims", "forged", world.namespace)
    body = {"metadata": {"name": "forged"}, "spec": template("forged")["spec"]["spec"]}
    owner.create(path(RESOURCE_V1, "resourceclaims", "", world.namespace), body)
    given = {"request": "main", "driver": DRIVER, "pool": "node-a", "device": "gpu-0"}
    forged = status({"devices": {"results": [given]}})
    assert ALLOCATES in refusal(lambda: owner.patch(f"{where}/status", forged))


def test_no_allocation_and_no_reservation_is_taken_away(world: World, owner: KubeClient) -> None:
    where = claimed(world, "kept")
    before = world.cluster.get(where)["status"]
    for change in ({"reservedFor": None}, {"reservedFor": None, "allocation": None}):
        assert ALLOCATES in refusal(lambda c=change: owner.patch(f"{where}/status", {"status": c}))
    assert world.cluster.get(where)["status"] == before


def test_a_claim_above_the_maximum_is_not_created(world: World, owner: KubeClient) -> None:
    namespace = world.make_namespace({NAMESPACE_LABEL: "true"})
    owner_of(world, namespace)
    world.cluster.patch(path("/api/v1", "namespaces", namespace), {"metadata": {"annotations": {MAX_MEMORY: "2Gi"}}})
    spec = template("big")["spec"]["spec"]
    spec["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["memory"] = "14Gi"
    body = {"metadata": {"name": "big"}, "spec": spec}
    where = path(RESOURCE_V1, "resourceclaims", "", namespace)
    until("it is refused", lambda: "max-memory" in refusal(lambda: owner.create(where, body, dryRun="All")))


@pytest.mark.parametrize(
    "forged",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"resourceClaimStatuses": [{"name": "gpu-share", "resourceClaimName": "another"}]},
        {"resourceClaimStatuses": [{"name": "gpu-share"}]},
        {"extendedResourceClaimStatus": {**EXTENDED, "resourceClaimName": "another"}},
    ],
    ids=str,
)
def test_no_pod_that_runs_is_called_ended_and_no_claim_is_taken_from_it(
    world: World, owner: KubeClient, forged: Object
) -> None:
    where = f"{world.pods(world.created(rewritten(share(containers=[ASKING]))))}/status"
    standing = {"phase": "Running", "resourceClaimStatuses": CLAIMS, "extendedResourceClaimStatus": EXTENDED}
    world.cluster.patch(where, {"status": standing})
    assert "delete the pod to end it" in refusal(lambda: owner.patch(where, {"status": forged}))
    assert standing.items() <= world.cluster.get(where)["status"].items()
    condition = {"type": "example.com/ready", "status": "True"}
    owner.patch(where, {"status": {"conditions": [condition]}})


@pytest.mark.parametrize(
    ("writer", "written"),
    [
        ("system:serviceaccount:kube-system:pod-garbage-collector", {"phase": "Failed"}),
        ("system:serviceaccount:kube-system:resource-claim-controller", {"resourceClaimStatuses": CLAIMS}),
        ("system:kube-scheduler", {"extendedResourceClaimStatus": EXTENDED}),
    ],
)
def test_what_kubernetes_writes_into_a_pods_status_passes(world: World, writer: str, written: Object) -> None:
    where = f"{world.pods(world.created(rewritten(share(containers=[ASKING]))))}/status"
    Acting.as_user(world.plane, writer).patch(where, {"status": written})
    assert written.items() <= world.cluster.get(where)["status"].items()


def test_a_kubelet_may_end_its_pod(world: World) -> None:
    pod = rewritten(share())
    pod["spec"]["nodeName"] = "node-of-status"
    world.cluster.create(path("/api/v1", "nodes"), {"metadata": {"name": "node-of-status"}})
    where = f"{world.pods(world.created(pod))}/status"
    kubelet = Acting.as_user(world.plane, "system:node:node-of-status", group="system:nodes")
    until("it is the kubelet's", lambda: refusal(lambda: kubelet.patch(where, {"status": {"phase": "Failed"}})) == "")


def test_no_quota_is_changed_without_a_permission_of_the_cluster(world: World, owner: KubeClient) -> None:
    name = world.created(rewritten(share()))
    wish = {"metadata": {"annotations": {f"{RESIZE_OF}main": "3Gi"}}}
    assert "gpu-share-resize" in refusal(lambda: owner.patch(world.pods(name), wish))


def test_no_policy_takes_permissions_in_a_namespace_for_permissions_in_the_cluster() -> None:
    policies = [each for each in manifests.load() if each["kind"] == "ValidatingAdmissionPolicy"]
    assert [each["metadata"]["name"] for each in policies if ".namespace(" in str(each)] == []
