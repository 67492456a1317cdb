"""From a rewritten pod to node and GPU: template, claim, the stock scheduler's choice, and what remains afterwards."""

import pytest

from gpushare.contract import COMPUTE, DRIVER, MAX_CLIENTS, SAME_GPU, SIDECAR
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import CLAIMS, PODS, SLICES, TEMPLATES, Bed, may, template_name
from tests.integration.controlplane.checker import audit
from tests.integration.controlplane.objects import Object
from tests.testbed.cluster.processes import kill

pytestmark = pytest.mark.controlplane
APPS_V1 = "/apis/apps/v1"
BATCH_V1 = "/apis/batch/v1"


def check_nothing_over_committed(bed: Bed, node: str) -> None:
    """All claims on a node, whoever's, against what the node offers."""
    slices = bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector=f"spec.nodeName={node}")[0]
    claims = [claim for claim in bed.cluster.list(path(RESOURCE_V1, CLAIMS))[0] if node in pools(claim)]
    found = audit(slices, claims, DRIVER)
    assert found.claims
    assert found.problems == []


def pools(claim: Object) -> set[str]:
    allocation = claim.get("status", {}).get("allocation") or {"devices": {"results": []}}
    return {result["pool"] for result in allocation["devices"]["results"]}


def test_a_pod_gets_template_claim_node_and_gpu(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("single", 16384)
    made = bed.create(namespace, objects.pod("a", "4Gi", node="single", **{COMPUTE: "25%"}))
    bound = bed.wait_bound(namespace, "a")
    assert bound["spec"]["nodeName"] == "single"
    assert bed.gpus_of(bound) == {"main": "gpu-0", SIDECAR: "status"}
    results = bed.claim_of(bound)["status"]["allocation"]["devices"]["results"]
    consumed = next(each["consumedCapacity"] for each in results if each["request"] == "main")
    assert consumed == {"memory": "4Gi", "compute": "25", "clients": "1"}
    assert bed.find(path(RESOURCE_V1, TEMPLATES, template_name(made), namespace)) is not None


def test_two_pods_that_fit_share_a_gpu_and_a_third_waits_until_there_is_room(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("tight", 16384)
    both = []
    # One after the other: while the first is bound its share can count twice (docs/design/placement.md, "Waiting").
    for name in ("a", "b"):
        bed.create(namespace, objects.pod(name, "8000Mi", node="tight"))
        both.append(bed.wait_bound(namespace, name))
    assert [bed.gpus_of(pod)["main"] for pod in both] == ["gpu-0", "gpu-0"]
    bed.create(namespace, objects.pod("c", "6Gi", node="tight"))
    assert "cannot allocate all claims" in bed.wait_unschedulable(namespace, "c")
    bed.delete_pod(namespace, "a")
    assert bed.wait_bound(namespace, "c")["spec"]["nodeName"] == "tight"
    check_nothing_over_committed(bed, "tight")


def test_compute_is_fitted_as_well(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("busy", 16384)
    for name in ("a", "b"):
        bed.create(namespace, objects.pod(name, "1Gi", node="busy", **{COMPUTE: "50%"}))
        bed.wait_bound(namespace, name)
    bed.create(namespace, objects.pod("c", "1Gi", node="busy", **{COMPUTE: "1%"}))
    bed.wait_unschedulable(namespace, "c")
    bed.create(namespace, objects.pod("d", "1Gi", node="busy"))
    bed.wait_bound(namespace, "d")


def two_containers(name: str, node: str, **annotations: str) -> Object:
    body = objects.pod(name, node=node, **annotations)
    body["spec"]["containers"] = [{"name": each, "image": "example.invalid/app:1"} for each in ("large", "small")]
    return body


def test_the_containers_of_a_pod_share_one_gpu_unless_set_otherwise(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("pair", 8192, 8192)
    each = {"memory.gpu-share.io/large": "6Gi", "memory.gpu-share.io/small": "4Gi"}
    bed.create(namespace, two_containers("apart", "pair", **each, **{SAME_GPU: "false"}))
    gpus = bed.gpus_of(bed.wait_bound(namespace, "apart"))
    assert {gpus["large"], gpus["small"]} == {"gpu-0", "gpu-1"}
    bed.delete_pod(namespace, "apart")
    bed.create(namespace, two_containers("together", "pair", **each))
    bed.wait_unschedulable(namespace, "together")
    bed.delete_pod(namespace, "together")
    bed.create(namespace, two_containers("fitting", "pair", **{**each, "memory.gpu-share.io/small": "2Gi"}))
    gpus = bed.gpus_of(bed.wait_bound(namespace, "fitting"))
    assert gpus["large"] == gpus["small"]


def test_a_pod_may_ask_for_a_model(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("modest", 16384)
    bed.create(namespace, objects.pod("a", "1Gi", node="modest", **{"gpu-share.io/gpu-model": "H100, A100"}))
    bed.wait_bound(namespace, "a")
    bed.create(namespace, objects.pod("b", "1Gi", node="modest", **{"gpu-share.io/gpu-model": "H100"}))
    bed.wait_unschedulable(namespace, "b")
    bed.create(namespace, objects.pod("c", "1Gi", node="modest", **{"gpu-share.io/gpu-model": "A10"}))
    bed.wait_unschedulable(namespace, "c")


def two_replicas(source: Object) -> Object:
    return objects.deployment(source, 2)


WORKLOADS = {
    "deployment": (APPS_V1, "deployments", two_replicas, 2),
    "statefulset": (APPS_V1, "statefulsets", objects.stateful_set, 1),
    "job": (BATCH_V1, "jobs", objects.job, 1),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_workloads_share_because_their_pods_do(bed: Bed, kind: str) -> None:
    base, plural, build, count = WORKLOADS[kind]
    namespace = bed.namespace(kind)
    bed.node(f"for-{kind}", 16384)
    body = build(objects.pod("it", "2Gi", node=f"for-{kind}"))
    tenant = bed.plane.cluster("tenant")
    made = tenant.create(path(base, plural, namespace=namespace), body)
    template = made["spec"]["template"]
    assert "initContainers" not in template["spec"], "only pods are rewritten, workloads stay as they were written"
    bed.until("the pods are there", lambda: len(bed.list(PODS, namespace)) == count)
    for pod in bed.list(PODS, namespace):
        bed.wait_bound(namespace, pod["metadata"]["name"])
    assert len(bed.list(TEMPLATES, namespace)) == 1


def test_a_job_completes_although_its_pod_has_a_sidecar(bed: Bed) -> None:
    namespace = bed.namespace("job")
    bed.node("for-one-job", 16384)
    where = path(BATCH_V1, "jobs", namespace=namespace)
    bed.plane.cluster("tenant").create(where, objects.job(objects.pod("it", "2Gi", node="for-one-job")))
    bed.until("the pod is there", lambda: len(bed.list(PODS, namespace)) == 1)
    pod = bed.wait_bound(namespace, bed.list(PODS, namespace)[0]["metadata"]["name"])
    status = path(CORE_V1, PODS, pod["metadata"]["name"], namespace) + "/status"
    bed.cluster.patch(status, {"status": {"phase": "Succeeded"}})
    bed.until("the job is complete", lambda: bed.cluster.get(f"{where}/it")["status"].get("succeeded") == 1)
    bed.until("its template is gone", lambda: bed.list(TEMPLATES, namespace) == [])


def test_the_pods_of_a_cron_job_share(bed: Bed) -> None:
    """The controller's minute is not waited for: a Job is made of the template as it would."""
    namespace = bed.namespace("cron")
    bed.node("for-cron", 16384)
    tenant = bed.plane.cluster("tenant")
    body = objects.cron_job(objects.pod("it", "2Gi", node="for-cron"))
    body["spec"]["suspend"] = True
    made = tenant.create(path(BATCH_V1, "cronjobs", namespace=namespace), body)
    run = {"metadata": {"name": "it-1"}, "spec": made["spec"]["jobTemplate"]["spec"]}
    tenant.create(path(BATCH_V1, "jobs", namespace=namespace), run)
    bed.until("the pod is there", lambda: len(bed.list(PODS, namespace)) == 1)
    bed.wait_bound(namespace, bed.list(PODS, namespace)[0]["metadata"]["name"])


def test_a_template_goes_after_the_last_pod_that_names_it(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.node("emptying", 16384)
    for name in ("a", "b"):
        bed.create(namespace, objects.pod(name, "2Gi", node="emptying"))
        bed.wait_bound(namespace, name)
    (template,) = bed.list(TEMPLATES, namespace)
    bed.delete_pod(namespace, "a")
    with pytest.raises(AssertionError, match="in vain"):
        bed.until("the template is gone", lambda: bed.list(TEMPLATES, namespace) == [], seconds=bed.retention + 2)
    bed.delete_pod(namespace, "b")
    bed.until("the template is gone", lambda: bed.list(TEMPLATES, namespace) == [])
    bed.until("the claims are gone", lambda: bed.list(CLAIMS, namespace) == [])
    bed.create(namespace, objects.pod("c", "2Gi", node="emptying"))
    bed.wait_bound(namespace, "c")
    assert bed.list(TEMPLATES, namespace)[0]["metadata"]["name"] == template["metadata"]["name"]


def test_a_template_that_was_deleted_by_hand_comes_back(bed: Bed) -> None:
    namespace = bed.namespace("team")
    bed.create(namespace, objects.pod("a", "2Gi", node="no-such-node"))
    bed.until("the template is there", lambda: len(bed.list(TEMPLATES, namespace)) == 1)
    (template,) = bed.list(TEMPLATES, namespace)
    bed.cluster.delete(path(RESOURCE_V1, TEMPLATES, template["metadata"]["name"], namespace))
    gone = [[], [template["metadata"]["uid"]]]
    bed.until("it is back", lambda: [t["metadata"]["uid"] for t in bed.list(TEMPLATES, namespace)] not in gone)


def test_with_the_webhook_down_only_sharing_pods_are_refused(bed: Bed) -> None:
    namespace, plain = bed.namespace("team"), bed.namespace("plain", opted_in=False)
    bed.node("while-down", 16384)
    bed.stop_webhooks()
    try:
        with pytest.raises(ClusterError, match=r'failed calling webhook "pods\.gpu-share\.io"'):
            bed.create(namespace, objects.pod("a", "1Gi", node="while-down"))
        bed.create(namespace, objects.pod("other", node="while-down"))
        bed.wait_bound(namespace, "other")
        bed.create(plain, objects.pod("a", "1Gi"))
    finally:
        bed.start_webhooks()
    bed.create(namespace, objects.pod("a", "1Gi", node="while-down"))
    bed.wait_bound(namespace, "a")


def test_with_the_webhook_configuration_gone_the_policy_has_the_last_word(bed: Bed) -> None:
    namespace = bed.namespace("team")
    where = path("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "gpu-share")
    saved = bed.cluster.get(where)
    bed.cluster.delete(where)
    try:
        bed.until("the policy refuses", lambda: "was not rewritten" in _refusal(bed, namespace))
        bed.create(namespace, objects.pod("other"))
    finally:
        saved["metadata"] = {key: saved["metadata"][key] for key in ("name", "labels")}
        bed.cluster.create(where.rpartition("/")[0], saved)
    bed.until("pods are rewritten again", lambda: _refusal(bed, namespace) == "")


def _refusal(bed: Bed, namespace: str) -> str:
    try:
        bed.create(namespace, objects.pod("a", "1Gi"), dryRun="All")
    except ClusterError as error:
        return error.message
    return ""


def test_a_replica_killed_between_answer_and_template_is_made_up_for_by_another(bed: Bed) -> None:
    """The moment is held open by taking the right to create templates away; the killed process never gets it back."""
    namespace = bed.namespace("team")
    bed.node("orphaned", 16384)
    bed.stop_webhooks()
    bed.start_webhooks(only=[0])
    role = path("/apis/rbac.authorization.k8s.io/v1", "clusterroles", "gpu-share-webhook")
    rules = bed.cluster.get(role)["rules"]
    kept = [rule for rule in rules if "resourceclaimtemplates" not in rule["resources"]]
    reading = {"apiGroups": ["resource.k8s.io"], "resources": [TEMPLATES], "verbs": ["get", "list", "watch"]}
    bed.cluster.patch(role, {"rules": [*kept, reading]})
    webhook = KubeClient.connect(str(bed.plane.kubeconfig("gpu-share-system.gpu-share-webhook")))
    bed.until("the right is gone", lambda: not _may_create_templates(webhook, namespace))
    try:
        made = bed.create(namespace, objects.pod("a", "1Gi", node="orphaned"))
        answered_by = bed.replicas[0].process
        assert answered_by is not None
        kill(answered_by)
        assert bed.list(TEMPLATES, namespace) == []
    finally:
        bed.cluster.patch(role, {"rules": rules})
        bed.until("the right is back", lambda: _may_create_templates(webhook, namespace))
        bed.start_webhooks(only=[1])
    bed.wait_bound(namespace, "a")
    assert bed.list(TEMPLATES, namespace)[0]["metadata"]["name"] == template_name(made)
    bed.start_webhooks()


def _may_create_templates(webhook: KubeClient, namespace: str) -> bool:
    return may(webhook, "create", "resource.k8s.io", TEMPLATES, namespace)


def test_the_manifests_can_be_applied_again(bed: Bed) -> None:
    """An upgrade is the same apply; the caBundle that ``gpu-share certs`` keeps survives it."""
    where = path("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "gpu-share")
    before = bed.cluster.get(where)["webhooks"][0]["clientConfig"]
    shipped = [each for each in manifests.control_plane() if each["kind"] != "MutatingWebhookConfiguration"]
    manifests.apply(bed.cluster, shipped)
    assert bed.cluster.get(where)["webhooks"][0]["clientConfig"] == before


def test_more_containers_than_mps_has_clients_share_a_gpu_by_time_slicing(bed: Bed) -> None:
    """The GPU had a number of clients before, as MPS has and as earlier releases published for every mode."""
    namespace = bed.namespace("team")
    bed.node("sliced", 81920)
    bed.create(namespace, objects.pod("before", "512Mi", node="sliced"))
    bed.wait_bound(namespace, "before")
    where = path(RESOURCE_V1, SLICES, f"sliced-{DRIVER}")
    published = bed.cluster.get(where)
    published["spec"]["devices"][0]["capacity"].pop("clients")
    published["spec"]["pool"]["generation"] += 1
    bed.cluster.replace(where, published)
    names = [f"a-{number}" for number in range(MAX_CLIENTS)]
    for name in names:
        bed.create(namespace, objects.pod(name, "512Mi", node="sliced"))
    for name in names:
        bed.wait_bound(namespace, name)
    # What it consumed of a capacity that is gone is nothing that can be compared.
    bed.delete_pod(namespace, "before")
    bed.until("its claim is gone", lambda: len(bed.list(CLAIMS, namespace)) == MAX_CLIENTS)
    bed.create(namespace, objects.pod("last", "512Mi", node="sliced"))
    bed.wait_bound(namespace, "last")
    check_nothing_over_committed(bed, "sliced")
    bed.empty(namespace)
