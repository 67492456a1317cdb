"""A claim that holds a share keeps what protects it from being deleted under its pod."""

import pytest

from gpushare.contract import DRIVER
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import Acting, World, refusal, template, until
from tests.testbed.cluster.controlplane import RBAC_V1

pytestmark = pytest.mark.controlplane
PROTECTION = "resource.kubernetes.io/delete-protection"
STAYS = "stays while the claim is allocated"


@pytest.fixture(scope="module")
def bringer(world: World) -> KubeClient:
    """Somebody who may bring claims, and nothing else."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bringer"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpu-share-edit"}
    body = {"metadata": {"name": "bringer"}, "roleRef": role, "subjects": [subject]}
    world.cluster.create(path(RBAC_V1, "rolebindings", namespace=world.namespace), body)
    found = Acting.as_user(world.plane, "bringer")
    probe = template("probe")
    until("the role works", lambda: refusal(lambda: found.create(world.templates(), probe, dryRun="All")) == "")
    where = claimed(world, "probe")

    def refused() -> bool:
        world.cluster.patch(where, finalizers(PROTECTION))
        return STAYS in refusal(lambda: found.patch(where, finalizers()))

    until("the policy is in force", refused)
    return found


def finalizers(*names: str) -> Object:
    return {"metadata": {"finalizers": list(names)}}


def claimed(world: World, name: str, driver: str = DRIVER) -> str:
    """Make a claim that is protected, allocated and held by a pod; return its path.

    From a claim nobody holds, the claims' controller takes allocation and protection away as soon as it is deleted.
    """
    where = path(RESOURCE_V1, "resourceclaims", name, world.namespace)
    spec = template(name)["spec"]["spec"]
    metadata = {"name": name, "finalizers": [PROTECTION]}
    world.cluster.create(path(RESOURCE_V1, "resourceclaims", "", world.namespace), {"metadata": metadata, "spec": spec})
    given = {"request": "main", "driver": driver, "pool": "node-a", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [given]}}, "reservedFor": [holder(world, name)]}
    world.cluster.patch(f"{where}/status", {"status": status})
    return where


def holder(world: World, name: str) -> Object:
    """A pod that stays as it is, as a claim names it."""
    pod = objects.pod(name)
    pod["spec"] |= {"automountServiceAccountToken": False, "schedulingGates": [{"name": "example.org/stays"}]}
    return {"resource": "pods", "name": name, "uid": world.cluster.create(world.pods(), pod)["metadata"]["uid"]}


def test_who_may_bring_claims_may_not_unprotect_one_that_is_allocated(world: World, bringer: KubeClient) -> None:
    where = claimed(world, "held")
    for left in ([], ["example.org/other"]):
        assert STAYS in refusal(lambda names=left: bringer.patch(where, finalizers(*names)))
    bringer.patch(where, {"metadata": {"labels": {"other": "thing"}}})
    bringer.patch(where, finalizers(PROTECTION, "example.org/other"))
    bringer.delete(where)
    assert STAYS in refusal(lambda: bringer.patch(where, finalizers()))
    assert "deletionTimestamp" in world.cluster.get(where)["metadata"]


def test_who_writes_allocations_may(world: World) -> None:
    where = claimed(world, "ours")
    world.cluster.patch(where, finalizers())
    assert "finalizers" not in world.cluster.get(where)["metadata"]


def test_claims_of_others_and_such_as_hold_nothing_are_left_alone(world: World, bringer: KubeClient) -> None:
    bringer.patch(claimed(world, "theirs", "example.org"), finalizers())
    where = claimed(world, "free")
    world.cluster.patch(f"{where}/status", {"status": {"allocation": None, "reservedFor": None}})
    bringer.patch(where, finalizers())


@pytest.mark.parametrize("devices", [{}, {"requests": []}, None])
def test_a_claim_that_asks_for_nothing_is_left_alone(world: World, bringer: KubeClient, devices: Object | None) -> None:
    """The API server writes null for requests that were left out."""
    spec: Object = {} if devices is None else {"devices": devices}
    for plural, inner in (("resourceclaims", spec), ("resourceclaimtemplates", {"spec": spec})):
        body = {"metadata": {"generateName": "nothing-"}, "spec": inner}
        made = bringer.create(path(RESOURCE_V1, plural, namespace=world.namespace), body)
        world.cluster.delete(path(RESOURCE_V1, plural, made["metadata"]["name"], world.namespace))
