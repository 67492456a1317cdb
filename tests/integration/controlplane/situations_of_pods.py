"""Situations of pods that ``gpu-share explain`` is asked about; ``situating`` says how they are made."""

from gpushare.contract import GROUP, MEMORY, MEMORY_OF, NAMESPACE_LABEL
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, PODS, Bed
from tests.integration.controlplane.explaining import kill
from tests.integration.controlplane.situating import (
    TIME,
    Answer,
    ask,
    closed,
    ended,
    node,
    prepare,
    share,
    situation,
    status,
    without,
)
from tests.testbed.cluster.controlplane import ADMIN


@situation
def namespace_not_opted_in(bed: Bed) -> Answer:
    """The commonest error of newcomers."""
    namespace = closed(bed)
    without(bed, namespace, "1Gi")
    return ask(bed, f"{namespace}/asking")


@situation
def namespace_not_opted_in_and_amount_wrong(bed: Bed) -> Answer:
    namespace = closed(bed)
    without(bed, namespace, "4GB")
    return ask(bed, "asking", "-n", namespace)


@situation
def namespace_label_with_another_value(bed: Bed) -> Answer:
    namespace = closed(bed, **{NAMESPACE_LABEL: "yes"})
    without(bed, namespace, "1Gi")
    return ask(bed, f"{namespace}/asking")


@situation
def namespace_opted_in_after_the_pod(bed: Bed) -> Answer:
    """As where the webhook was off: the pod was not rewritten when it was created."""
    namespace = closed(bed)
    without(bed, namespace, "1Gi")
    bed.cluster.patch(path(CORE_V1, "namespaces", namespace), {"metadata": {"labels": {NAMESPACE_LABEL: "true"}}})
    return ask(bed, f"{namespace}/asking")


@situation
def namespace_excluded(bed: Bed) -> Answer:
    name, where = "explained-0", path(CORE_V1, PODS, namespace="kube-system")
    bed.cluster.create(where, objects.pod(name, "1Gi", node=node(bed)))
    bed.wait_bound("kube-system", name)
    answer = ask(bed, f"kube-system/{name}", reader=ADMIN)
    bed.delete_pod("kube-system", name)
    return answer


@situation
def nothing_asked(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    bed.create(namespace, objects.pod("plain"))
    return ask(bed, "pod/plain", "-n", namespace)


@situation
def label_instead_of_annotation(bed: Bed) -> Answer:
    namespace = closed(bed)
    body = objects.pod("labelled")
    body["metadata"]["labels"] = {MEMORY: "4Gi"}
    bed.create(namespace, body)
    return ask(bed, f"{namespace}/labelled")


@situation
def hostile_annotations(bed: Bed) -> Answer:
    namespace = closed(bed)
    without(bed, namespace, "\x1b[2J\n" + "9" * 60_000, **{f"{GROUP}/nonsense": "{}", f"{MEMORY_OF}x": "-1Gi"})
    return ask(bed, f"{namespace}/asking")


@situation
def runs_with_a_limit_in_force(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    pod = share(bed, namespace)
    prepare(bed, pod, {"status": "True", "reason": "InForce", "message": "main (mps-v2): limit of 4096 MiB or less"})
    status(bed, pod, "Running", {"running": {"startedAt": TIME}})
    return ask(bed, f"{namespace}/asking")


@situation
def killed_and_running_again(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    pod = share(bed, namespace)
    prepare(bed, pod)
    status(bed, pod, "Running", {"running": {"startedAt": TIME}}, restarts=1)
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking")


@situation
def killed_where_a_resize_would_do(bed: Bed) -> Answer:
    """Its quota was made smaller than what its pod reserved."""
    namespace = bed.namespace("explained")
    pod = share(bed, namespace, memory="12Gi")
    prepare(bed, pod, mib=4096)
    status(bed, pod, "Running", {"running": {"startedAt": TIME}}, restarts=1)
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking")


@situation
def killed_beside_a_larger_init_container(bed: Bed) -> Answer:
    """Both use one request of the claim, so a resize cannot tell them apart."""
    namespace = bed.namespace("explained")
    body = objects.pod("asking", "4Gi", node=node(bed), **{f"{MEMORY_OF}warm": "12Gi"})
    body["spec"]["initContainers"] = [{"name": "warm", "image": "example.invalid/app:1"}]
    bed.create(namespace, body)
    pod = bed.wait_bound(namespace, "asking")
    prepare(bed, pod)
    status(bed, pod, "Running", {"running": {"startedAt": TIME}}, restarts=1)
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking")


@situation
def killed_above_the_maximum(bed: Bed) -> Answer:
    namespace = bed.namespace("explained", annotations={f"{GROUP}/max-memory": "8Gi"})
    pod = share(bed, namespace)
    prepare(bed, pod)
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking")


@situation
def killed_for_good(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    pod = share(bed, namespace)
    kill(bed, pod)
    ended(bed, pod, "Failed", "Error", 137)
    return ask(bed, f"{namespace}/asking")


@situation
def completed(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    ended(bed, share(bed, namespace), "Succeeded", "Completed", 0)
    return ask(bed, f"{namespace}/asking")


@situation
def out_of_ram(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    ended(bed, share(bed, namespace), "Failed", "OOMKilled", 137)
    return ask(bed, f"{namespace}/asking")


@situation
def larger_than_any_gpu(bed: Bed) -> Answer:
    """By an operator, who may read ResourceSlices."""
    namespace = bed.namespace("explained")
    bed.create(namespace, objects.pod("asking", "2Ti", node=node(bed)))
    bed.wait_unschedulable(namespace, "asking", "cannot allocate all claims")
    return ask(bed, f"{namespace}/asking", reader=ADMIN)


@situation
def no_room_by_a_tenant(bed: Bed) -> Answer:
    """Who may not read ResourceSlices does not learn whether it ever fits."""
    namespace = bed.namespace("explained")
    bed.create(namespace, objects.pod("asking", "2Ti", node=node(bed)))
    bed.wait_unschedulable(namespace, "asking", "cannot allocate all claims")
    return ask(bed, f"{namespace}/asking")


@situation
def another_scheduler(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    body = objects.pod("asking", "1Gi")
    body["spec"]["schedulerName"] = "volcano"
    bed.create(namespace, body)
    bed.until("its claim is made", lambda: bool(bed.list(CLAIMS, namespace)))
    return ask(bed, f"{namespace}/asking")


@situation
def two_containers_with_shares(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    body = objects.pod("asking", None, node=node(bed), **{f"{MEMORY_OF}main": "4Gi", f"{MEMORY_OF}second": "2Gi"})
    body["spec"]["containers"].append({"name": "second", "image": "example.invalid/app:1"})
    bed.create(namespace, body)
    pod = bed.wait_bound(namespace, "asking")
    prepare(bed, pod)
    status(bed, pod, "Running", {"running": {"startedAt": TIME}})
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking")


@situation
def claim_deleted(bed: Bed) -> Answer:
    """A claim that people wrote, and that is not there."""
    namespace = bed.namespace("explained")
    body = objects.pod("orphan")
    body["spec"] |= {"resourceClaims": [{"name": "own", "resourceClaimName": "missing"}]}
    bed.create(namespace, body)
    return ask(bed, f"{namespace}/orphan")


@situation
def json_of_a_killed_pod(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    pod = share(bed, namespace)
    prepare(bed, pod)
    status(bed, pod, "Running", {"running": {"startedAt": TIME}}, restarts=1)
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking", "-o", "json")
