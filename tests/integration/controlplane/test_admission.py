"""What becomes of pods at admission: who is touched, what they get, and what is refused."""

import copy
from contextlib import suppress

import pytest

from gpushare.contract import (
    CUDA_VISIBLE_DEVICES,
    MANAGED_LABEL,
    MEMORY,
    NO_NVIDIA_DEVICE,
    NVIDIA_VISIBLE_DEVICES,
    SIDECAR,
    TOKEN_PATH,
)
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, JSON_PATCH, RESOURCE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import PODS, TEMPLATES, Bed, template_name
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.second_webhook import second_webhook
from tests.load.bench.pods import pods
from webhook.serving.fair_queue import sender_of

pytestmark = pytest.mark.controlplane


def without_generated(pod: Object) -> Object:
    """A pod without what differs between any two creations."""
    plain = copy.deepcopy(pod)
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "namespace"):
        plain["metadata"].pop(key, None)
    for volume in plain["spec"]["volumes"]:
        volume["name"] = volume["name"].rpartition("-")[0]
    for container in plain["spec"]["containers"]:
        for mount in container["volumeMounts"]:
            mount["name"] = mount["name"].rpartition("-")[0]
    return plain


def test_a_namespace_without_the_label_is_never_touched(bed: Bed) -> None:
    namespace = bed.namespace("plain", opted_in=False)
    before = bed.requests_answered()
    bare = bed.create(namespace, objects.pod("bare"))
    asking = bed.create(namespace, objects.pod("asking", "4Gi"))
    nonsense = bed.create(namespace, objects.pod("nonsense", "-4 gigs"))
    assert bed.requests_answered() == before
    bed.create(bed.namespace("counted"), objects.pod("a", "1Gi"), dryRun="All")
    assert bed.requests_answered() == before + 1, "the count counts"
    assert MANAGED_LABEL not in nonsense["metadata"].get("labels", {})
    assert asking["metadata"].pop("annotations") == {MEMORY: "4Gi"}
    asking["metadata"]["name"] = "bare"
    assert without_generated(asking) == without_generated(bare)


def test_in_an_opted_in_namespace_pods_that_ask_for_nothing_are_never_touched(bed: Bed) -> None:
    namespace, plain = bed.namespace("team"), bed.namespace("plain", opted_in=False)
    before = bed.requests_answered()
    here, there = bed.create(namespace, objects.pod("a")), bed.create(plain, objects.pod("a"))
    assert bed.requests_answered() == before
    assert without_generated(here) == without_generated(there)


def test_the_sender_of_a_review_is_its_namespace_whatever_a_tenant_writes(bed: Bed) -> None:
    namespace, lie = bed.namespace("sender"), '"namespace":"other","'
    with second_webhook(bed.cluster, "a-reader", lambda pod: pod, namespaces=[namespace]) as reader:
        before = len(reader.bodies)
        for name in ("a", lie, "x" * 20_000):
            with suppress(ClusterError):  # the API server checks names after admission
                bed.create(namespace, objects.pod(name, "1Gi", note=lie))
        senders = [sender_of(each) for each in reader.bodies[before:]]
    assert senders == [namespace.encode()] * 3


def test_a_refusal_says_what_to_change(bed: Bed) -> None:
    namespace = bed.namespace("team")
    with pytest.raises(ClusterError, match=r"memory.*4Gi or 4G") as refused:
        bed.create(namespace, objects.pod("a", "4GB"))
    assert refused.value.status == 403
    with pytest.raises(ClusterError, match=r"gpu-share\.io/memroy.*gpu-share\.io/memory"):
        bed.create(namespace, objects.pod("a", **{"gpu-share.io/memroy": "4Gi"}))


def test_the_operators_ceiling_binds_a_namespace_that_was_made_a_moment_ago(bed: Bed) -> None:
    namespace = bed.namespace("small", annotations={"gpu-share.io/max-memory": "2Gi"})
    with pytest.raises(ClusterError, match=r"4Gi.*2Gi"):
        bed.create(namespace, objects.pod("a", "4Gi"))
    bed.create(namespace, objects.pod("a", "2Gi"))


def test_a_dry_run_is_rewritten_and_leaves_nothing_behind(bed: Bed) -> None:
    namespace = bed.namespace("dry")
    answered = bed.create(namespace, objects.pod("a", "3333Mi"), dryRun="All")
    assert answered["metadata"]["labels"] == {MANAGED_LABEL: "true"}
    bed.create(namespace, objects.pod("b", "3334Mi"))
    bed.until("the other pod's template is there", lambda: len(bed.list(TEMPLATES, namespace)) == 1)
    names = {each["metadata"]["name"] for each in bed.list(TEMPLATES, namespace)}
    assert template_name(answered) not in names


def test_the_benchmarks_pods_are_accepted(bed: Bed) -> None:
    namespace = bed.namespace("bench")
    bed.cluster.create(path(CORE_V1, "serviceaccounts", namespace=namespace), {"metadata": {"name": "model"}})
    for body in pods().values():
        body["metadata"]["namespace"] = namespace
        made = bed.create(namespace, body, dryRun="All")
        assert made["metadata"]["labels"][MANAGED_LABEL] == "true"


def test_the_sidecar_of_a_rewritten_pod_has_no_token(bed: Bed) -> None:
    namespace = bed.namespace("team")
    made = bed.create(namespace, objects.pod("a", "1Gi"))
    sidecar, main = made["spec"]["initContainers"][0], made["spec"]["containers"][0]
    assert sidecar["name"] == SIDECAR
    tokens = {volume["name"] for volume in made["spec"]["volumes"] if "projected" in volume}
    assert tokens
    assert {mount["name"] for mount in main["volumeMounts"] if mount["mountPath"] == TOKEN_PATH} == tokens
    assert not tokens & {mount["name"] for mount in sidecar["volumeMounts"]}


def test_a_restricted_namespace_takes_a_sharing_pod_that_it_took_before(bed: Bed) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = bed.namespace("restricted", labels=level)
    body = objects.pod("a", "1Gi")
    with pytest.raises(ClusterError, match=r'violates PodSecurity "restricted'):
        bed.create(namespace, copy.deepcopy(body))
    body["spec"]["containers"][0]["securityContext"] = objects.RESTRICTED
    made = bed.create(namespace, body)
    assert made["metadata"]["labels"] == {MANAGED_LABEL: "true"}


def test_an_ephemeral_container_gets_no_gpu(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("debugged", 16384)
    bed.create(namespace, objects.pod("a", "1Gi", node="debugged"))
    bed.wait_bound(namespace, "a")
    where = f"{path(CORE_V1, PODS, 'a', namespace)}/ephemeralcontainers"
    wanted = [{"name": NVIDIA_VISIBLE_DEVICES, "value": "all"}, {"name": CUDA_VISIBLE_DEVICES, "value": "0"}]
    debug = {"name": "debug", "image": "example.invalid/debug:1", "targetContainerName": "main", "env": wanted}
    strategic = "application/strategic-merge-patch+json"
    answer = bed.cluster.patch(where, {"spec": {"ephemeralContainers": [debug]}}, strategic)
    env = {each["name"]: each.get("value", "") for each in answer["spec"]["ephemeralContainers"][0]["env"]}
    assert env == {NVIDIA_VISIBLE_DEVICES: NO_NVIDIA_DEVICE, CUDA_VISIBLE_DEVICES: ""}
    assert "claims" not in answer["spec"]["ephemeralContainers"][0].get("resources", {})


def test_what_a_pod_asked_for_cannot_be_edited_later(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.create(namespace, objects.pod("a", "1Gi"))
    tenant = bed.plane.cluster("tenant")
    where = path(CORE_V1, PODS, "a", namespace)
    with pytest.raises(ClusterError, match="cannot be changed later"):
        tenant.patch(where, {"metadata": {"annotations": {MEMORY: "8Gi"}}})
    with pytest.raises(ClusterError, match="cannot be changed later"):
        tenant.patch(where, {"metadata": {"labels": {MANAGED_LABEL: None}}})
    tenant.patch(where, {"metadata": {"annotations": {"example.com/note": "fine"}}})


def test_a_tenant_writes_claim_templates_of_other_names_only(bed: Bed) -> None:
    namespace = bed.namespace("team")
    made = bed.create(namespace, objects.pod("a", "1Gi"))
    name = template_name(made)
    where = path(RESOURCE_V1, TEMPLATES, namespace=namespace)
    bed.until("the template is there", lambda: bed.find(f"{where}/{name}") is not None)
    content = bed.cluster.get(f"{where}/{name}")
    tenant = bed.plane.cluster("tenant")
    forged = {"metadata": {"name": "gpu-share-0123456789abcdef"}, "spec": content["spec"]}
    with pytest.raises(ClusterError, match=r"named gpu-share-\* can be written only by the gpu-share webhook"):
        tenant.create(where, forged)
    with pytest.raises(ClusterError, match=r"named gpu-share-\*"):
        tenant.delete(f"{where}/{name}")
    own = {"metadata": {"name": "mine"}, "spec": content["spec"]}
    tenant.create(where, own)


def test_a_pod_that_brings_its_own_claim_of_our_class_is_left_as_it_is(bed: Bed) -> None:
    namespace = bed.namespace("team")
    claim = {
        "name": "share",
        "exactly": {"deviceClassName": "gpu-share.io", "capacity": {"requests": {"memory": "1Gi"}}},
    }
    template = {"metadata": {"name": "mine"}, "spec": {"spec": {"devices": {"requests": [claim]}}}}
    bed.plane.cluster("tenant").create(path(RESOURCE_V1, TEMPLATES, namespace=namespace), template)
    body = objects.pod("a")
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "mine"}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    made = bed.create(namespace, body)
    assert MANAGED_LABEL not in made["metadata"].get("labels", {})
    assert made["spec"]["resourceClaims"] == body["spec"]["resourceClaims"]
    assert "initContainers" not in made["spec"]


def test_a_claim_of_another_gpu_driver_is_denied_beside_a_share(bed: Bed) -> None:
    namespace = bed.namespace("team")
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {"metadata": {"name": "whole"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    bed.plane.cluster("tenant").create(path(RESOURCE_V1, TEMPLATES, namespace=namespace), template)
    body = objects.pod("a", "1Gi")
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "whole"}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}

    def denied() -> bool:
        try:
            bed.create(namespace, copy.deepcopy(body), dryRun="All")
        except ClusterError as error:
            return "spec.containers[0].resources.claims" in error.message
        return False

    bed.until("every replica knows the template", lambda: all(denied() for _ in bed.replicas))


def test_a_tenant_cannot_lift_the_ceiling_of_its_namespace(bed: Bed) -> None:
    namespace = bed.namespace("team", annotations={"gpu-share.io/max-memory": "2Gi"})
    where = path(CORE_V1, "namespaces", namespace)
    bed.cluster.create(
        path("/apis/rbac.authorization.k8s.io/v1", "rolebindings", namespace=namespace),
        {
            "metadata": {"name": "tenant-is-admin"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}],
        },
    )
    tenant = bed.plane.cluster("tenant")
    bed.until("the tenant may edit its namespace", lambda: _edited(tenant, where))
    with pytest.raises(ClusterError, match="are set by cluster operators"):
        tenant.patch(where, [{"op": "remove", "path": "/metadata/annotations"}], JSON_PATCH)
    bed.plane.cluster("operator").patch(where, {"metadata": {"annotations": {"gpu-share.io/max-memory": "3Gi"}}})


def _edited(tenant: object, where: str) -> bool:
    try:
        tenant.patch(where, {"metadata": {"labels": {"example.com/team": "a"}}})  # type: ignore[attr-defined]
    except ClusterError:
        return False
    return True
