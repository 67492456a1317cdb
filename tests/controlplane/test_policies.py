"""What the policies refuse by themselves: with the webhook stopped, set to Ignore, or followed by another one."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from gpushare.cluster import ADMISSION_V1, CORE_V1, JSON_PATCH, MERGE_PATCH, RESOURCE_V1, path
from gpushare.contract import MANAGED_LABEL, MAX_MEMORY, MEMORY, MIRROR, NAMESPACE_LABEL, SIDECAR
from gpushare.errors import ClusterError
from tests.cluster.controlplane import OPERATOR, RBAC_V1, TENANT, ControlPlane, sweep
from tests.cluster.need import require_binaries
from tests.controlplane import manifests, objects
from tests.controlplane.conftest import BUILD
from tests.controlplane.objects import Object
from tests.controlplane.policies import (
    AGENT,
    NODE_NAME,
    Acting,
    World,
    annotation,
    refusal,
    rewritten,
    share,
    template,
    two_containers,
)

pytestmark = pytest.mark.controlplane
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    require_binaries()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-policies")
    try:
        yield World.start(plane)
    finally:
        plane.stop()


def until(what: str, check: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


# The manifests themselves


def test_every_shipped_document_is_accepted_to_the_letter(world: World) -> None:
    for item in manifests.load():
        manifests.apply(world.cluster, [item], dryRun="All", fieldValidation="Strict")


def test_no_policy_has_a_type_warning(world: World) -> None:
    where = path(ADMISSION_V1, "validatingadmissionpolicies")

    def checked() -> list[Object]:
        return [p for p in world.cluster.get(where)["items"] if p.get("status", {}).get("observedGeneration")]

    until("the policies are type-checked", lambda: len(checked()) == 7)
    assert [p["metadata"]["name"] for p in checked() if p["status"]["typeChecking"] != {}] == []


# The last word on a sharing pod

SHAPES: dict[str, Callable[[], Object]] = {
    "one container": share,
    "idle and init containers": two_containers,
    "a native sidecar of its own": lambda: share(
        initContainers=[{"name": "proxy", "image": "p", "restartPolicy": "Always"}]
    ),
    "its own lower thread percentage": lambda: share(
        containers=[
            {"name": "main", "image": "a", "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "5"}]}
        ]
    ),
    "variables from elsewhere": lambda: share(
        containers=[{"name": "main", "image": "a", "envFrom": [{"configMapRef": {"name": "c"}}]}]
    ),
    "another claim beside": lambda: share(resourceClaims=[{"name": "net", "resourceClaimName": "net"}]),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_rewritten_pod_passes(world: World, shape: Callable[[], Object]) -> None:
    assert world.refused(rewritten(shape())) == ""


@pytest.mark.parametrize(
    "shape",
    [shape for name, shape in SHAPES.items() if name != "another claim beside"],
    ids=[name for name in SHAPES if name != "another claim beside"],
)
def test_a_pod_that_was_not_rewritten_is_refused(world: World, shape: Callable[[], Object]) -> None:
    assert "was not rewritten by the gpu-share webhook" in world.refused(shape(), world.tenant)


def env(pod: Object, container: int = 0, section: str = "containers") -> list[dict[str, object]]:
    found: list[dict[str, object]] = pod["spec"][section][container]["env"]
    return found


def setting(name: str, value: str, container: int = 0, section: str = "containers") -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        entry = next(e for e in env(pod, container, section) if e["name"] == name)
        entry["value"] = value

    return change


def adding(name: str, value: str, container: int = 0) -> Callable[[Object], None]:
    return lambda pod: env(pod, container).append({"name": name, "value": value})


def from_elsewhere(name: str) -> Callable[[Object], None]:
    def change(pod: Object) -> None:
        entry = next(e for e in env(pod) if e["name"] == name)
        del entry["value"]
        entry["valueFrom"] = {"fieldRef": {"fieldPath": "metadata.name"}}

    return change


def dropping(name: str, container: int = 0) -> Callable[[Object], None]:
    return lambda pod: env(pod, container).remove(next(e for e in env(pod, container) if e["name"] == name))


def on_spec(**fields: object) -> Callable[[Object], None]:
    return lambda pod: pod["spec"].update(fields)


def on_sidecar(**fields: object) -> Callable[[Object], None]:
    return lambda pod: pod["spec"]["initContainers"][0].update(fields)


def on_sidecars_security(**fields: object) -> Callable[[Object], None]:
    return lambda pod: pod["spec"]["initContainers"][0]["securityContext"].update(fields)


def host_path(where: str) -> Callable[[Object], None]:
    return lambda pod: pod["spec"]["volumes"].append({"name": "d", "hostPath": {"path": where}})


def without_label(pod: Object) -> None:
    del pod["metadata"]["labels"][MANAGED_LABEL]


def another_template(pod: Object) -> None:
    pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "gpu-share-mine"


def sidecar_last(pod: Object) -> None:
    pod["spec"]["initContainers"].append(pod["spec"]["initContainers"].pop(0))


HIDDEN = "every container has CUDA_VISIBLE_DEVICES empty"
LIMITS = "limits of a sharing container"
SIDE = "the sidecar gpu-share is missing"
ROADS = "each leads around its limit"
REWRITE = "was not rewritten"
UNDONE: dict[str, tuple[Callable[[Object], None], str]] = {
    "sees all GPUs": (setting("NVIDIA_VISIBLE_DEVICES", "all"), HIDDEN),
    "sees a GPU": (setting("CUDA_VISIBLE_DEVICES", "0"), HIDDEN),
    "sees a GPU in the idle container": (setting("NVIDIA_VISIBLE_DEVICES", "all", 1), HIDDEN),
    "sees a GPU in the init container": (setting("CUDA_VISIBLE_DEVICES", "0", 1, "initContainers"), HIDDEN),
    "sees a GPU in the sidecar": (setting("NVIDIA_VISIBLE_DEVICES", "all", 0, "initContainers"), HIDDEN),
    "hidden twice": (adding("CUDA_VISIBLE_DEVICES", ""), HIDDEN),
    "hidden from elsewhere": (from_elsewhere("CUDA_VISIBLE_DEVICES"), HIDDEN),
    "not hidden": (dropping("NVIDIA_VISIBLE_DEVICES", 1), HIDDEN),
    "a higher limit": (setting("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8192M"), LIMITS),
    "a limit for a GPU it does not see": (setting("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M,1=4G"), LIMITS),
    "a second limit": (adding("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8192M"), LIMITS),
    "no limit": (dropping("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), LIMITS),
    "a limit from elsewhere": (from_elsewhere("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), LIMITS),
    "another daemon": (setting("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), LIMITS),
    "another log": (setting("CUDA_MPS_LOG_DIRECTORY", "/tmp"), LIMITS),
    "memory that is no number": (setting("GPU_SHARE_MEMORY_MIB", "4Gi"), LIMITS),
    "a template that is not ours": (another_template, REWRITE),
    "no claim": (on_spec(resourceClaims=[], containers=[{"name": "main", "image": "a"}]), REWRITE),
    "no label": (without_label, REWRITE),
    "the sidecar last": (sidecar_last, SIDE),
    "a privileged sidecar": (on_sidecars_security(privileged=True, allowPrivilegeEscalation=True), SIDE),
    "a sidecar as root": (on_sidecars_security(runAsNonRoot=False), SIDE),
    "a sidecar with capabilities": (on_sidecars_security(capabilities={"drop": ["ALL"], "add": ["KILL"]}), SIDE),
    "a sidecar that drops nothing": (on_sidecars_security(capabilities={}), SIDE),
    "hostPID": (on_spec(hostPID=True), ROADS),
    "hostIPC": (on_spec(hostIPC=True), ROADS),
    "shareProcessNamespace": (on_spec(shareProcessNamespace=True), ROADS),
    "a device": (host_path("/dev/nvidia0"), ROADS),
    "a device, oddly written": (host_path("//dev/.//nvidiactl"), ROADS),
    "all devices": (host_path("/dev/"), ROADS),
    "privileged": (lambda pod: pod["spec"]["containers"][1].update(securityContext={"privileged": True}), ROADS),
}


@pytest.mark.parametrize(("change", "why"), UNDONE.values(), ids=UNDONE.keys())
def test_what_a_later_webhook_undoes_is_refused(world: World, change: Callable[[Object], None], why: str) -> None:
    pod = rewritten(two_containers())
    change(pod)
    assert why in world.refused(pod)


@pytest.mark.parametrize("where", ["/dev/shm", "/devices", "/data/dev/nvidia", "/var/lib/nvidia"])
def test_other_directories_of_the_node_are_not_ours_to_refuse(world: World, where: str) -> None:
    pod = rewritten(share())
    host_path(where)(pod)
    assert world.refused(pod) == ""


def test_pods_that_ask_for_nothing_and_other_namespaces_are_left_alone(world: World) -> None:
    plain = objects.pod("plain")
    plain["spec"]["hostPID"] = True
    assert world.refused(plain) == ""
    elsewhere = world.make_namespace()
    world.cluster.create(world.pods(namespace=elsewhere), share(), dryRun="All")


def test_the_managed_label_cannot_be_forged(world: World) -> None:
    forged = objects.pod("forged")
    forged["metadata"]["labels"] = {MANAGED_LABEL: "true"}
    assert "gpu-share.io/managed is set by gpu-share alone" in world.refused(forged, world.tenant)


def test_a_pod_with_a_claim_of_its_own_is_left_as_it_is(world: World) -> None:
    own = share(resourceClaims=[{"name": "mine", "resourceClaimName": "mine"}])
    assert world.refused(own) == ""


def test_only_the_kubelet_of_its_node_may_say_that_a_pod_is_a_mirror(world: World) -> None:
    mirror = share(nodeName="node-a")
    mirror["metadata"]["annotations"][MIRROR] = "x"
    assert REWRITE in world.refused(mirror, world.tenant)
    assert REWRITE in world.refused(mirror, Acting.as_user(world.plane, "system:node:node-b", group="system:masters"))
    assert world.refused(mirror, Acting.as_user(world.plane, "system:node:node-a", group="system:masters")) == ""


def test_the_largest_pods_do_not_exhaust_the_policies_budget(world: World) -> None:
    many = [{"name": f"V{n}", "value": "x"} for n in range(1000)]
    pod = share(containers=[{"name": f"c{n}", "image": "a", "env": many} for n in range(31)])
    assert world.refused(rewritten(pod)) == ""
    annotations = {f"memory.gpu-share.io/c{n}": "1Gi" for n in range(31)}
    pod["metadata"]["annotations"] = annotations
    assert world.refused(rewritten(pod)) == ""


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
    assert FROZEN in said or (subresource and said == ""), "refused, or ignored by that subresource"
    assert after == "4Gi"


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
        assert "a Binding cannot set" in refusal(lambda at=where: world.cluster.create(at, binding))  # type: ignore[misc]
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
        assert "written by the gpu-share webhook alone" in refusal(
            lambda n=name: world.tenant.create(world.templates(), template(n))  # type: ignore[misc]
        )
    generated = {**template(""), "metadata": {"generateName": "gpu-share-"}}
    assert "webhook alone" in refusal(lambda: world.tenant.create(world.templates(), generated))
    as_webhook.create(world.templates(), template("gpu-share-0123456789abcdef"))
    where = world.templates("gpu-share-0123456789abcdef")
    labelled = {"metadata": {"labels": {"a": "b"}}}
    assert "webhook alone" in refusal(lambda: world.tenant.patch(where, labelled))
    assert "webhook alone" in refusal(lambda: world.tenant.delete(where))
    assert "webhook alone" in refusal(lambda: world.tenant.delete(world.templates()))
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
    assert "webhook alone" in refusal(lambda: lead.create(world.templates(), template("gpu-share-a")))
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
    rule = {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["*"]}
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
    changes: list[Object] = [
        {"metadata": {"labels": {NAMESPACE_LABEL: "true"}}},
        {"metadata": {"annotations": {MAX_MEMORY: "64Gi"}}},
        {"metadata": {"annotations": {"x.gpu-share.io/y": "z"}}},
    ]
    for change in changes:
        for at in (where, f"{where}/status"):
            assert "set by cluster operators" in refusal(lambda c=change, a=at: lead.patch(a, c))  # type: ignore[misc]
        until("the operator's role works", lambda c=change: refusal(lambda: chief.patch(where, c)) == "")  # type: ignore[misc]
    assert "set by cluster operators" in refusal(
        lambda: lead.patch(where, {"metadata": {"annotations": {MAX_MEMORY: None}}})
    )
    opened = {"metadata": {"name": f"{plain}-new", "labels": {NAMESPACE_LABEL: "true"}}}
    assert "set by cluster operators" in refusal(lambda: lead.create(path(CORE_V1, "namespaces"), opened))
    lead.delete(where)


# Slices and claims of an agent


def test_an_agent_publishes_for_its_own_node_alone(world: World) -> None:
    for name in ("node-1", "node-2"):
        world.cluster.create(path(CORE_V1, "nodes"), objects.node(name))
    agent = Acting.as_user(world.plane, AGENT, {NODE_NAME: "node-1"})
    slices = path(RESOURCE_V1, "resourceslices")
    agent.create(slices, objects.resource_slice("node-1", [16000]))
    assert "its own node" in refusal(lambda: agent.create(slices, objects.resource_slice("node-2", [16000])))
    world.cluster.create(slices, objects.resource_slice("node-2", [16000]))
    foreign = path(RESOURCE_V1, "resourceslices", "node-2-gpu-share.io")
    assert "its own node" in refusal(lambda: agent.patch(foreign, {"metadata": {"annotations": {"a": "b"}}}))
    assert "its own node" in refusal(lambda: agent.delete(foreign))
    stranger = objects.resource_slice("node-1", [16000])
    stranger["metadata"]["name"], stranger["spec"]["driver"] = "x", "gpu.example.org"
    assert "driver gpu-share.io alone" in refusal(lambda: agent.create(slices, stranger))
    nobody = Acting.as_user(world.plane, AGENT)
    assert "names no node" in refusal(lambda: nobody.create(slices, objects.resource_slice("node-1", [16000])))
    agent.delete(path(RESOURCE_V1, "resourceslices", "node-1-gpu-share.io"))


def test_a_real_token_of_the_agent_carries_its_node(world: World) -> None:
    node = world.cluster.create(path(CORE_V1, "nodes"), objects.node("node-3"))
    agent = type(world.cluster).connect(str(world.plane.service_account("gpu-share-system", "gpu-share-agent", node)))
    agent.create(path(RESOURCE_V1, "resourceslices"), objects.resource_slice("node-3", [16000]))


# Who may do what


@pytest.mark.parametrize(
    ("account", "method", "where"),
    [
        ("gpu-share-webhook", "get", "/api/v1/secrets"),
        ("gpu-share-webhook", "get", "/api/v1/namespaces/gpu-share-system/secrets/gpu-share-webhook-tls"),
        ("gpu-share-webhook", "get", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"),
        ("gpu-share-agent", "get", "/api/v1/secrets"),
        ("gpu-share-agent", "delete", "/api/v1/namespaces/default/pods/x"),
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


def test_the_identities_of_the_bed_are_those_meant_here(world: World) -> None:
    assert world.plane.kubeconfig(TENANT).exists()
    assert world.plane.kubeconfig(OPERATOR).exists()
    assert rewritten(share())["spec"]["initContainers"][0]["name"] == SIDECAR
