"""Claim templates under load and in trouble, on a real API server with three replicas of the webhook."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpushare.contract import GPU_MODEL, MANAGED_LABEL, SAME_GPU
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.reasons import Reason
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, NOW, PODS, TEMPLATES, Bed, template_name
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.test_placement import two_containers

pytestmark = pytest.mark.controlplane
MANY = 60
FIRST = 15
WRITERS = 8
NOWHERE = "no-such-node"


@pytest.fixture(name="namespace")
def _namespace(bed: Bed) -> Iterator[str]:
    """Of this test alone; what it leaves must not be in the metrics that the next one looks at."""
    name = bed.namespace("templates")
    yield name
    bed.empty(name)
    bed.until("no template is left over", lambda: bed.list(TEMPLATES, name) == [])


def names(bed: Bed, namespace: str) -> set[str]:
    return {each["metadata"]["name"] for each in bed.list(TEMPLATES, namespace)}


def metrics(bed: Bed, name: str) -> list[float]:
    return [bed.metric(each, name) for each in bed.replicas]


def settled(bed: Bed) -> bool:
    """Whether each replica knows as many templates as there are."""
    there = bed.cluster.list(path(RESOURCE_V1, TEMPLATES), labelSelector=f"{MANAGED_LABEL}=true")[0]
    return metrics(bed, "gpu_share_templates") == [len(there)] * len(bed.replicas)


def create_many(bed: Bed, namespace: str, first_mib: int) -> set[str]:
    """Pods that each want a template of their own and no node has room for. Returns the templates' names."""
    bodies = [objects.pod(f"p-{each}", f"{first_mib + each}Mi", node=NOWHERE) for each in range(MANY)]
    with ThreadPoolExecutor(WRITERS) as pool:
        made = list(pool.map(lambda body: bed.create(namespace, body), bodies))
    return {template_name(each) for each in made}


KINDS: dict[str, Object] = {
    "plain": objects.pod("a", "1500Mi", node=NOWHERE),
    "compute": objects.pod("a", "4Gi", node=NOWHERE, **{"gpu-share.io/compute": "25%"}),
    "models": objects.pod("a", "4Gi", node=NOWHERE, **{GPU_MODEL: "H100,A100"}),
    "several GPUs": objects.pod("a", "4Gi", node=NOWHERE, **{"gpu-share.io/gpus": "2"}),
    "an instance": objects.pod("a", node=NOWHERE, **{"gpu-share.io/mig-profile": "1g.10gb"}),
    "together": two_containers(
        "a", NOWHERE, **{"memory.gpu-share.io/large": "6Gi", "memory.gpu-share.io/small": "4Gi"}
    ),
    "apart": two_containers(
        "a", NOWHERE, **{"memory.gpu-share.io/large": "6Gi", "memory.gpu-share.io/small": "4Gi", SAME_GPU: "false"}
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_api_server_made_of_a_template_is_known_for_the_same(bed: Bed, namespace: str, kind: str) -> None:
    made = bed.create(namespace, KINDS[kind])
    bed.until("its template is there", lambda: names(bed, namespace) == {template_name(made)})
    bed.until("every replica has seen it", lambda: metrics(bed, "gpu_share_templates_missing") == [0, 0, 0])

    assert metrics(bed, "gpu_share_templates_conflicting") == [0, 0, 0]


def conflicts(bed: Bed, template: str) -> list[int]:
    """Lines in the replicas' logs that report a conflict about this template."""
    logs = [bed.plane.log(each.name).read_text().splitlines() for each in bed.replicas]
    return [sum(str(Reason.TEMPLATE_CONFLICT) in line and template in line for line in lines) for lines in logs]


def test_a_template_of_that_name_that_says_something_else_is_reported_and_made_again_once_it_is_deleted(
    bed: Bed, namespace: str
) -> None:
    """Only the webhook and administrators may write one; before the pod comes, the pod is refused."""
    wanted = template_name(bed.create(namespace, objects.pod("a", "1501Mi", node=NOWHERE)))
    bed.until("the right one is there", lambda: names(bed, namespace) == {wanted})
    where = path(RESOURCE_V1, TEMPLATES, namespace=namespace)
    request = {"name": "main", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    other = {"metadata": {"name": wanted}, "spec": {"spec": {"devices": {"requests": [request]}}}}
    uid = ""

    def quicker() -> bool:
        """Put another one in its place before a replica makes it again."""
        nonlocal uid
        bed.remove(f"{where}/{wanted}")
        try:
            uid = bed.cluster.create(where, other)["metadata"]["uid"]
        except ClusterError:
            return False
        return True

    bed.until("another one has its name", quicker)
    bed.until("every replica says so", lambda: metrics(bed, "gpu_share_templates_conflicting") == [1, 1, 1])
    assert bed.cluster.get(f"{where}/{wanted}")["metadata"]["uid"] == uid, "it is not ours to delete"
    bed.until("every replica logs it once", lambda: conflicts(bed, wanted) == [1, 1, 1])

    bed.cluster.delete(f"{where}/{wanted}")
    bed.until("the right one is there", lambda: names(bed, namespace) == {wanted})
    requests = bed.cluster.get(f"{where}/{wanted}")["spec"]["spec"]["devices"]["requests"]
    assert requests[0]["exactly"]["deviceClassName"] == "gpu-share.io"
    bed.until("nobody says so any more", lambda: metrics(bed, "gpu_share_templates_conflicting") == [0, 0, 0])


def test_all_templates_deleted_at_once_under_pods_that_wait_come_back(bed: Bed, namespace: str) -> None:
    wanted = create_many(bed, namespace, 2000)
    assert len(wanted) == MANY
    bed.until("all templates are there", lambda: names(bed, namespace) == wanted)
    before = {each["metadata"]["uid"] for each in bed.list(TEMPLATES, namespace)}
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda name: bed.remove(path(RESOURCE_V1, TEMPLATES, name, namespace)), wanted))

    def back() -> bool:
        there = bed.list(TEMPLATES, namespace)
        new = {each["metadata"]["name"] for each in there if each["metadata"]["uid"] not in before}
        return new == wanted

    began = time.monotonic()
    bed.until("all templates are back", back)
    print(f"\n{MANY} templates deleted by hand are back after {time.monotonic() - began:.2f} s")
    bed.until("every pod has its claim", lambda: len(bed.list(CLAIMS, namespace)) == MANY)


def test_a_namespace_goes_with_everything_in_it_and_nothing_is_kept_of_it(bed: Bed) -> None:
    """Its pods wait for templates that the namespace's end deletes under them, and that nobody can make any more."""
    namespace = bed.namespace("going")
    wanted = create_many(bed, namespace, 3000)
    bed.until("all templates are there", lambda: names(bed, namespace) == wanted)
    bed.until("every replica knows them", lambda: settled(bed))
    bed.cluster.delete(path(CORE_V1, "namespaces", namespace))
    bed.until("it is gone", lambda: bed.find(path(CORE_V1, "namespaces", namespace)) is None, seconds=120)

    assert [bed.list(kind, namespace) for kind in (PODS, CLAIMS, TEMPLATES)] == [[], [], []]
    bed.until("nobody waits for one", lambda: metrics(bed, "gpu_share_templates_missing") == [0, 0, 0])
    bed.until("no replica knows one", lambda: settled(bed))


def test_a_namespace_that_comes_to_take_part_again_has_its_templates_made(bed: Bed, namespace: str) -> None:
    made = bed.create(namespace, objects.pod("a", "1502Mi", node=NOWHERE))
    wanted = {template_name(made)}
    bed.until("its template is there", lambda: names(bed, namespace) == wanted)
    where = path(CORE_V1, "namespaces", namespace)
    # Away meanwhile: label and template travel by different watches, and may come in either order.
    bed.stop_webhooks()
    bed.cluster.patch(where, {"metadata": {"labels": {"gpu-share.io/enabled": None}}})
    bed.cluster.delete(path(RESOURCE_V1, TEMPLATES, template_name(made), namespace))
    bed.start_webhooks()
    probe = bed.namespace("meanwhile")
    bed.create(probe, objects.pod("a", "1503Mi", node=NOWHERE))
    bed.until("others get theirs", lambda: len(names(bed, probe)) == 1)
    assert names(bed, namespace) == set()

    bed.cluster.patch(where, {"metadata": {"labels": {"gpu-share.io/enabled": "true"}}})
    bed.until("its template is back", lambda: names(bed, namespace) == wanted)
    bed.cluster.delete(path(CORE_V1, PODS, "a", probe), NOW)


def test_the_first_pods_of_a_size_raise_no_alarm_about_their_claims(bed: Bed, namespace: str) -> None:
    """Kubernetes looks for the template as soon as it sees the pod, and warns where there is none yet."""
    for number in range(FIRST):
        bed.create(namespace, objects.pod(f"first-{number}", f"{7000 + number}Mi", node=NOWHERE))
    bed.until("every pod has its claim", lambda: len(bed.list(CLAIMS, namespace)) == FIRST)

    events = bed.cluster.list(path(CORE_V1, "events", namespace=namespace))[0]
    warned = {each["involvedObject"]["name"] for each in events if each["reason"] == "FailedResourceClaimCreation"}
    print(f"\n{len(warned)} of {FIRST} first pods show FailedResourceClaimCreation")
    assert len(warned) <= 1, sorted(warned)


def test_a_pod_that_is_denied_after_the_webhook_leaves_no_template(bed: Bed, namespace: str) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    where = path(CORE_V1, "resourcequotas", namespace=namespace)
    bed.cluster.create(where, quota)
    bed.until("the quota is counted", lambda: "hard" in bed.cluster.get(f"{where}/none").get("status", {}))
    with pytest.raises(ClusterError, match="exceeded quota"):
        bed.create(namespace, objects.pod("denied", "7100Mi", node=NOWHERE))
    bed.until("its template is made", lambda: len(names(bed, namespace)) == 1)
    bed.until("its template is collected", lambda: names(bed, namespace) == set(), seconds=60)


def test_pods_that_come_and_go_leave_no_template(bed: Bed, namespace: str) -> None:
    for first in (4000, 5000):
        wanted = create_many(bed, namespace, first)
        bed.until("all templates are there", lambda expected=wanted: names(bed, namespace) == expected)  # type: ignore[misc] # bound now
        bed.empty(namespace)
        bed.until("none is left", lambda: names(bed, namespace) == set(), seconds=60)
    bed.until("no claim is left", lambda: bed.list(CLAIMS, namespace) == [])
