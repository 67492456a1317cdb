"""What the other policies and the roles hold: nothing is edited later, nobody writes what is not theirs."""

import pytest

from gpushare.contract import AUDIT_HEAD, MANAGED_LABEL, MAX_MEMORY, MEMORY, NAMESPACE_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, JSON_PATCH, MERGE_PATCH, RESOURCE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.policies.world import (
    ENFORCER,
    NODE_NAME,
    UNRESIZABLE,
    Acting,
    World,
    annotation,
    refusal,
    rewritten,
    share,
    template,
    until,
)
from tests.testbed.cluster.controlplane import RBAC_V1

pytestmark = pytest.mark.controlplane
STRATEGIC = "application/strategic-merge-patch+json"

# What was asked for is frozen


@pytest.fixture(scope="module")
def managed(world: World) -> str:
    return world.created(rewritten(share()))


FROZEN = "cannot be changed later"


@pytest.mark.parametrize("subresource", ["", "/status", "/resize"])
@pytest.mark.parametrize("value", ["8Gi", None])
@pytest.mark.parametrize("content_type", [MERGE_PATCH, STRATEGIC])
def test_annotations_cannot_be_edited(
    world: World, managed: str, subresource: str, value: str | None, content_type: str
) -> None:
    where = world.pods(managed) + subresource
    said = refusal(lambda: world.cluster.patch(where, annotation(value), content_type))
    after = world.cluster.get(world.pods(managed))["metadata"]["annotations"][MEMORY]
    ignored = subresource and (said == "" or UNRESIZABLE in said)
    assert FROZEN in said or ignored, "refused, or ignored by that subresource"
    assert after == "4Gi"


def test_a_refused_change_of_memory_names_the_command_that_changes_it(world: World, managed: str) -> None:
    refused = refusal(lambda: world.tenant.patch(world.pods(managed), annotation("3Gi")))
    assert f"gpu-share resize {world.namespace}/{managed} CONTAINER" in refused


@pytest.mark.parametrize("key", ["gpu-share.io/compute", "memory.gpu-share.io/main", "GPU-share.io/memory"])
def test_annotations_cannot_be_added_by_a_tenant(world: World, managed: str, key: str) -> None:
    patch = {"metadata": {"annotations": {key: "1"}}}
    assert FROZEN in refusal(lambda: world.tenant.patch(world.pods(managed), patch))
    change = [{"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": "1"}]
    assert FROZEN in refusal(lambda: world.tenant.patch(world.pods(managed), change, JSON_PATCH))


@pytest.mark.parametrize("value", ["false", None])
def test_the_managed_label_cannot_be_edited(world: World, managed: str, value: str | None) -> None:
    patch = {"metadata": {"labels": {MANAGED_LABEL: value}}}
    assert FROZEN in refusal(lambda: world.tenant.patch(world.pods(managed), patch))


def test_everything_else_of_a_pod_can_be_edited(world: World, managed: str) -> None:
    other = {
        "metadata": {"annotations": {"example.org/a": "1"}, "labels": {"app": "x"}, "finalizers": ["example.org/f"]}
    }
    world.tenant.patch(world.pods(managed), other)
    world.tenant.patch(world.pods(managed), {"metadata": {"finalizers": None}})
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    world.cluster.patch(f"{world.pods(managed)}/status", ready)


def test_a_binding_cannot_bring_annotations_of_ours(world: World) -> None:
    pod = world.created(rewritten(share()))
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-a"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "annotations": {MEMORY: "9Gi"}}}
    binding["target"] = target
    for where in (f"{world.pods(pod)}/binding", path(CORE_V1, "bindings", namespace=world.namespace)):
        assert "a Binding cannot set" in refusal(lambda at=where: world.cluster.create(at, binding))
    binding["metadata"] = {"name": pod}
    world.cluster.create(f"{world.pods(pod)}/binding", binding)


# Ephemeral containers


@pytest.mark.parametrize(
    ("variables", "passes"),
    [
        ([], False),
        ([("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void")], True),
        ([("NVIDIA_VISIBLE_DEVICES", "void")], False),
        ([("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "all")], False),
        ([("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void"), ("CUDA_VISIBLE_DEVICES", "0")], False),
        ([("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void"), ("CUDA_MPS_LOG_DIRECTORY", "/a")], False),
    ],
)
def test_an_ephemeral_container_sees_no_gpu(
    world: World, managed: str, variables: list[tuple[str, str]], *, passes: bool
) -> None:
    env = [{"name": name, "value": value} for name, value in variables]
    pod = world.cluster.get(world.pods(managed))
    standing = pod["spec"].get("ephemeralContainers", [])
    debug = {"name": f"debug-{len(standing)}", "image": "busybox", "env": env}
    patch = {"spec": {"ephemeralContainers": [*standing, debug]}}
    said = refusal(lambda: world.cluster.patch(f"{world.pods(managed)}/ephemeralcontainers", patch, STRATEGIC))
    assert (said == "") == passes
    assert passes or "has no GPU" in said


# Claim templates


def test_only_the_webhook_writes_templates_of_our_name(world: World) -> None:
    webhook = world.plane.service_account("gpu-share-system", "gpu-share-webhook")
    as_webhook = type(world.cluster).connect(str(webhook))
    for name in ("gpu-share-0123456789abcdef", "gpu-share-x"):
        assert "written only by the gpu-share webhook" in refusal(
            lambda n=name: world.tenant.create(world.templates(), template(n))
        )
    generated = {**template(""), "metadata": {"generateName": "gpu-share-"}}
    assert "only by the gpu-share webhook" in refusal(lambda: world.tenant.create(world.templates(), generated))
    ours = template("gpu-share-0123456789abcdef")
    ours["metadata"]["labels"] = {MANAGED_LABEL: "true"}
    as_webhook.create(world.templates(), ours)
    where = world.templates("gpu-share-0123456789abcdef")
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert "only by the gpu-share webhook" in refusal(lambda: world.tenant.patch(where, labelled))
    assert "only by the gpu-share webhook" in refusal(lambda: world.tenant.delete(where))
    assert "only by the gpu-share webhook" in refusal(lambda: world.tenant.delete(world.templates()))
    as_webhook.delete(where)
    world.tenant.create(world.templates(), template("mine"))
    world.tenant.delete(world.templates("mine"))


def test_a_wildcard_role_in_the_namespace_is_not_enough(world: World) -> None:
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    roles = path(RBAC_V1, "roles", namespace=world.namespace)
    world.cluster.create(roles, {"metadata": {"name": "all"}, "rules": everything})
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "lead"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"}
    body = {"metadata": {"name": "all"}, "roleRef": role, "subjects": [subject]}
    world.cluster.create(path(RBAC_V1, "rolebindings", namespace=world.namespace), body)
    lead = Acting.as_user(world.plane, "lead")
    until("the role works", lambda: "forbidden: User" not in refusal(lambda: lead.get(world.templates())))
    assert "only by the gpu-share webhook" in refusal(lambda: lead.create(world.templates(), template("gpu-share-a")))
    where = path(CORE_V1, "namespaces", world.namespace)
    assert "set by cluster operators" in refusal(
        lambda: lead.patch(where, {"metadata": {"labels": {NAMESPACE_LABEL: None}}})
    )


def test_garbage_collection_and_the_end_of_a_namespace_take_templates_along(world: World) -> None:
    namespace = world.make_namespace({NAMESPACE_LABEL: "true"})
    owner = world.cluster.create(path(CORE_V1, "configmaps", namespace=namespace), {"metadata": {"name": "owner"}})
    owned = template("gpu-share-owned")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    owned["metadata"]["ownerReferences"] = [reference]
    world.cluster.create(world.templates(namespace=namespace), owned)
    world.cluster.create(world.templates(namespace=namespace), template("gpu-share-left"))
    pod = rewritten(share())
    world.cluster.create(world.pods(namespace=namespace), pod)
    world.cluster.delete(path(CORE_V1, "configmaps", "owner", namespace))
    gone = world.templates("gpu-share-owned", namespace)
    until("the garbage collector removes the template", lambda: "not found" in refusal(lambda: world.cluster.get(gone)))
    where = path(CORE_V1, "namespaces", namespace)
    world.cluster.delete(where)
    until("the namespace is gone", lambda: "not found" in refusal(lambda: world.cluster.get(where)))


# Namespaces


def test_only_operators_decide_which_namespaces_share_and_how_much(world: World) -> None:
    rule = {"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": ["*"]}
    roles = path(RBAC_V1, "clusterroles")
    world.cluster.create(roles, {"metadata": {"name": "namespaces"}, "rules": [rule]})
    for user, role in (("lead", "namespaces"), ("chief", "namespaces"), ("chief", "gpu-share-operator")):
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": f"{user}-{role}"}, "roleRef": reference, "subjects": [subject]}
        world.cluster.create(path(RBAC_V1, "clusterrolebindings"), body)
    lead, chief = Acting.as_user(world.plane, "lead"), Acting.as_user(world.plane, "chief")
    plain = world.make_namespace()
    where = path(CORE_V1, "namespaces", plain)
    until("the role works", lambda: refusal(lambda: lead.patch(where, {"metadata": {"labels": {"a": "b"}}})) == "")
    changes: list[objects.Object] = [
        {"metadata": {"labels": {NAMESPACE_LABEL: "true"}}},
        {"metadata": {"annotations": {MAX_MEMORY: "64Gi"}}},
        {"metadata": {"annotations": {"x.gpu-share.io/y": "z"}}},
    ]
    for change in changes:
        for at in (where, f"{where}/status"):
            assert "set by cluster operators" in refusal(lambda c=change, a=at: lead.patch(a, c))
        until("the operator's role works", lambda c=change: refusal(lambda: chief.patch(where, c)) == "")  # type: ignore[misc] # bound now
    assert "set by cluster operators" in refusal(
        lambda: lead.patch(where, {"metadata": {"annotations": {MAX_MEMORY: None}}})
    )
    opened = {"metadata": {"name": f"{plain}-new", "labels": {NAMESPACE_LABEL: "true"}}}
    assert "set by cluster operators" in refusal(lambda: lead.create(path(CORE_V1, "namespaces"), opened))
    lead.delete(where)


# Slices and claims of an enforcer


def test_an_enforcer_publishes_for_its_own_node_alone(world: World) -> None:
    for name in ("node-1", "node-2"):
        world.cluster.create(path(CORE_V1, "nodes"), objects.node(name))
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: "node-1"})
    slices = path(RESOURCE_V1, "resourceslices")
    enforcer.create(slices, objects.resource_slice("node-1", [16000]))
    assert "its own node" in refusal(lambda: enforcer.create(slices, objects.resource_slice("node-2", [16000])))
    world.cluster.create(slices, objects.resource_slice("node-2", [16000]))
    foreign = path(RESOURCE_V1, "resourceslices", "node-2-gpu-share.io")
    assert "its own node" in refusal(lambda: enforcer.patch(foreign, {"metadata": {"annotations": {"a": "b"}}}))
    assert "its own node" in refusal(lambda: enforcer.delete(foreign))
    elsewhere = objects.resource_slice("node-1", [16000])
    elsewhere["metadata"]["name"], elsewhere["spec"]["pool"]["name"] = "y", "node-2"
    assert "spec.pool.name" in refusal(lambda: enforcer.create(slices, elsewhere))
    stranger = objects.resource_slice("node-1", [16000])
    stranger["metadata"]["name"], stranger["spec"]["driver"] = "x", "gpu.example.org"
    assert "only devices of driver gpu-share.io" in refusal(lambda: enforcer.create(slices, stranger))
    nobody = Acting.as_user(world.plane, ENFORCER)
    assert "names no node" in refusal(lambda: nobody.create(slices, objects.resource_slice("node-1", [16000])))
    enforcer.delete(path(RESOURCE_V1, "resourceslices", "node-1-gpu-share.io"))


def test_a_real_token_of_the_enforcer_carries_its_node(world: World) -> None:
    node = world.cluster.create(path(CORE_V1, "nodes"), objects.node("node-3"))
    enforcer = type(world.cluster).connect(
        str(world.plane.service_account("gpu-share-system", "gpu-share-enforcer", node))
    )
    enforcer.create(path(RESOURCE_V1, "resourceslices"), objects.resource_slice("node-3", [16000]))


# Who may do what


@pytest.mark.parametrize(
    ("account", "method", "where"),
    [
        ("gpu-share-webhook", "get", "/api/v1/secrets"),
        ("gpu-share-webhook", "get", "/api/v1/namespaces/gpu-share-system/secrets/gpu-share-webhook-tls"),
        ("gpu-share-webhook", "get", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"),
        ("gpu-share-enforcer", "get", "/api/v1/secrets"),
        ("gpu-share-enforcer", "delete", "/api/v1/namespaces/default/pods/x"),
        ("gpu-share-certs", "get", "/api/v1/secrets"),
        ("gpu-share-certs", "get", "/api/v1/namespaces/gpu-share-system/secrets"),
        ("gpu-share-certs", "get", "/api/v1/namespaces/kube-system/secrets/gpu-share-webhook-tls"),
        ("gpu-share-certs", "get", "/api/v1/pods"),
    ],
)
def test_each_identity_has_no_right_it_does_not_need(world: World, account: str, method: str, where: str) -> None:
    connection = type(world.cluster).connect(str(world.plane.service_account("gpu-share-system", account)))
    with pytest.raises(ClusterError) as raised:
        getattr(connection, method)(where)
    assert raised.value.status == 403


def test_tenants_see_the_claims_behind_their_pods(world: World) -> None:
    where = path(RESOURCE_V1, "resourceclaims", namespace=world.namespace)
    until("the role is aggregated", lambda: refusal(lambda: world.tenant.get(where)) == "")


HEADS = ["41:sha256:" + "a" * 64, "42:sha256:" + "b" * 64, "107:sha256:" + "c" * 64]


def anchored_slice(head: str | None) -> objects.Object:
    """A slice of node-a with the head of its audit log."""
    pool = {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "node-a-anchored", "annotations": {} if head is None else {AUDIT_HEAD: head}},
        "spec": {"driver": "gpu-share.io", "nodeName": "node-a", "pool": pool, "devices": []},
    }


def test_an_enforcer_moves_its_audit_logs_anchor_on_and_never_back(world: World) -> None:
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: "node-a"})
    slices = path(RESOURCE_V1, "resourceslices")
    mine = path(RESOURCE_V1, "resourceslices", "node-a-anchored")
    assert "larger than before" in refusal(lambda: enforcer.create(slices, anchored_slice("rubbish")))
    enforcer.create(slices, anchored_slice(None))

    def moved(head: str | None) -> str:
        return refusal(lambda: enforcer.patch(mine, {"metadata": {"annotations": {AUDIT_HEAD: head}}}))

    assert moved(HEADS[1]) == ""
    assert moved(HEADS[1]) == "", "the same again"
    far = HEADS[1].replace("42:", "1000043:", 1)
    for back in (HEADS[0], HEADS[1].replace("b", "d"), None, "", "x", f"{HEADS[2]}x", "9" * 30, far):
        assert "larger than before" in moved(back), back
    assert moved(HEADS[2]) == "", "42 to 107 is forward, whatever texts say"
    assert world.cluster.get(mine)["metadata"]["annotations"][AUDIT_HEAD] == HEADS[2]
    world.cluster.patch(mine, {"metadata": {"annotations": {AUDIT_HEAD: None}}})
    assert moved(HEADS[0]) == "", "an operator may let it begin anew"
    world.cluster.delete(mine)


def test_an_enforcer_keeps_the_slice_that_bears_the_anchor(world: World) -> None:
    """Deleted and created again, or handed to the garbage collector, it would take any head."""
    enforcer = Acting.as_user(world.plane, ENFORCER, {NODE_NAME: "node-a"})
    mine = path(RESOURCE_V1, "resourceslices", "node-a-anchored")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "nobody"}
    enforcer.create(path(RESOURCE_V1, "resourceslices"), anchored_slice(HEADS[1]))
    try:
        assert "may not delete" in refusal(lambda: enforcer.delete(mine))
        gone = {"metadata": {"ownerReferences": [owner]}}
        assert "ownerReferences" in refusal(lambda: enforcer.patch(mine, gone))
        other = {"metadata": {"labels": {"a": "b"}}}
        assert refusal(lambda: enforcer.patch(mine, other)) == ""
    finally:
        world.cluster.delete(mine)
    enforcer.create(path(RESOURCE_V1, "resourceslices"), anchored_slice(None))
    enforcer.delete(mine)
