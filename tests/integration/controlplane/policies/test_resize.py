"""Who may ask for another quota of a container that runs, how, and when."""

import pytest

from gpushare.contract import MEMORY, RESIZE_OF
from gpushare.kube_client import MERGE_PATCH, KubeClient, path
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import UNRESIZABLE, Acting, World, refusal, rewritten, share, until
from tests.testbed.cluster.controlplane import RBAC_V1

pytestmark = pytest.mark.controlplane
WISH = f"{RESIZE_OF}main"
NOT_YOU = "you may not change quotas of running containers"


def wish(value: str | None, key: str = WISH) -> Object:
    return {"metadata": {"annotations": {key: value}}}


@pytest.fixture(scope="module")
def managed(world: World) -> str:
    return world.created(rewritten(share()))


@pytest.fixture(scope="module")
def trusted(world: World, managed: str) -> KubeClient:
    """Somebody who may resize pods of this namespace, and nothing else."""
    here = {"resources": ["podresizes"], "resourceNames": [world.namespace], "verbs": ["update"]}
    body = {"metadata": {"name": "resize-here"}, "rules": [{"apiGroups": ["gpu-share.io"], **here}]}
    world.cluster.create(path(RBAC_V1, "clusterroles"), body)
    found = Acting.as_user(world.plane, "trusted")
    bind(world, path(RBAC_V1, "rolebindings", namespace=world.namespace), "gpu-share-resize")
    until("the role works", lambda: refusal(lambda: found.get(world.pods(managed))) == "")
    assert NOT_YOU in refusal(lambda: found.patch(world.pods(managed), wish("3Gi"))), "in the namespace alone"
    bind(world, path(RBAC_V1, "clusterrolebindings"), "resize-here")
    until("it may", lambda: refusal(lambda: found.patch(world.pods(managed), wish("3Gi"), dryRun="All")) == "")
    return found


def bind(world: World, where: str, role: str) -> None:
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "trusted"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    world.cluster.create(where, {"metadata": {"name": "trusted"}, "roleRef": reference, "subjects": [subject]})


def test_who_has_the_role_may_ask_change_and_take_back(world: World, managed: str, trusted: KubeClient) -> None:
    for value in ("3Gi", "3072Mi;force", "3Gi;id=5f3a", None):
        trusted.patch(world.pods(managed), wish(value))
        found = world.cluster.get(world.pods(managed))["metadata"]["annotations"]
        assert found.get(WISH) == value
    assert found[MEMORY] == "4Gi"


def test_a_tenant_who_may_edit_pods_may_not(world: World, managed: str, trusted: KubeClient) -> None:
    assert NOT_YOU in refusal(lambda: world.tenant.patch(world.pods(managed), wish("3Gi")))
    trusted.patch(world.pods(managed), wish("3Gi"))
    for value in ("2Gi", None):
        assert NOT_YOU in refusal(lambda v=value: world.tenant.patch(world.pods(managed), wish(v)))
    world.tenant.patch(world.pods(managed), {"metadata": {"labels": {"other": "thing"}}})
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    world.cluster.patch(f"{world.pods(managed)}/status", ready)
    trusted.patch(world.pods(managed), wish(None))


def test_a_subresource_is_no_way_around(world: World, managed: str) -> None:
    kubelet = Acting.as_user(world.plane, "impostor", group="system:masters")
    for subresource in ("/status", "/resize"):
        where = world.pods(managed) + subresource
        said = refusal(lambda at=where: kubelet.patch(at, wish("lots"), MERGE_PATCH))
        after = world.cluster.get(world.pods(managed))["metadata"]["annotations"]
        assert "amount of memory" in said or UNRESIZABLE in said or said == ""
        assert WISH not in after


@pytest.mark.parametrize("value", ["3", "lots", "3Gi force", "3Gi;id=X", "3GB", "3Gi" + ";force" * 14])
def test_what_is_no_amount_is_refused(world: World, managed: str, trusted: KubeClient, value: str) -> None:
    assert "is an amount of memory such as 3Gi" in refusal(lambda: trusted.patch(world.pods(managed), wish(value)))


def test_a_container_that_is_not_there_is_refused(world: World, managed: str, trusted: KubeClient) -> None:
    said = refusal(lambda: trusted.patch(world.pods(managed), wish("3Gi", f"{RESIZE_OF}mian")))
    assert f"no container for {RESIZE_OF}mian; end the key in one of main" in said


def test_other_annotations_stay_frozen_for_who_has_the_role(world: World, managed: str, trusted: KubeClient) -> None:
    for key in (MEMORY, f"memory.{WISH.partition('.')[2]}", f"RESIZE.{WISH.partition('.')[2]}"):
        assert "cannot be changed later" in refusal(lambda k=key: trusted.patch(world.pods(managed), wish("1Gi", k)))


def test_no_pod_begins_with_a_resize_request_in_any_namespace(world: World) -> None:
    plain = world.make_namespace()
    for namespace, pod in ((world.namespace, rewritten(share())), (plain, share())):
        del pod["metadata"]["annotations"][MEMORY]
        pod["metadata"]["annotations"][WISH] = "3Gi"
        said = refusal(lambda p=pod, n=namespace: world.cluster.create(world.pods(namespace=n), p, dryRun="All"))
        assert "changes the quota of a running container" in said


def test_a_namespace_that_did_not_opt_in_is_lowered_to_it_too(world: World, trusted: KubeClient) -> None:
    plain = world.make_namespace()
    name = world.cluster.create(world.pods(namespace=plain), share())["metadata"]["name"]
    assert NOT_YOU in refusal(lambda: world.tenant.patch(world.pods(name, plain), wish("3Gi")))
    assert "forbidden" in refusal(lambda: trusted.patch(world.pods(name, plain), wish("3Gi"))), "no role there"
    world.cluster.patch(world.pods(name, plain), wish("3Gi"))
