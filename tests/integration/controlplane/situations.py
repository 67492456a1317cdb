"""Situations that ``gpu-share explain`` is asked about, each made on a real API server by the tenant's own rights.

A situation returns the words of the command and what it answered. Nodes and what enforcers write are API objects.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from enforcer.quota.from_claims import parse_mib
from gpushare.contract import (
    GROUP,
    LIMIT_IN_FORCE,
    MEMORY,
    MEMORY_MIB,
    MEMORY_OF,
    NAMESPACE_LABEL,
    SIDECAR,
)
from gpushare.kube_client import APPS_V1, CORE_V1, RESOURCE_V1, path
from gpushare_cli.explain.kinds import BATCH_V1
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, PODS, Bed
from tests.integration.controlplane.explaining import GPU, kill, product
from tests.integration.controlplane.objects import Object
from tests.testbed.cluster.controlplane import ADMIN, TENANT

NODE: Final = "explained-node"
GPUS: Final = (1024 * 1024, 16384, 16384, 16384, 16384, 16384, 16384, 16384)
"""One larger than any other of these tests has, so that the largest is known."""
TIME: Final = "2026-11-20T22:20:00Z"
Answer = tuple[list[str], int, str]
SITUATIONS: Final[dict[str, Callable[[Bed], Answer]]] = {}
_VARIABLE: Final = (
    (r"explained-[0-9]+\b", "NAMESPACE"),
    (r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z", "TIME"),
    (r"not placed: [^\n\"]*", "not placed: (the scheduler's words)"),
    (r"(-gpu-share-)[a-z0-9]{5}\b", r"\1xxxxx"),
    (r"\bworker-[a-z0-9]+(-[a-z0-9]{5})?\b", "worker-xxxxx"),
    (r" +", " "),
)


def normalised(words: list[str], code: int, text: str) -> str:
    """Return a command and its answer without what differs from run to run."""
    whole = f"$ gpu-share {' '.join(words)}\n{text}exit code {code}\n"
    for pattern, stand_in in _VARIABLE:
        whole = re.sub(pattern, stand_in, whole)
    return whole


def situation(made: Callable[[Bed], Answer]) -> Callable[[Bed], Answer]:
    """Add a situation under the name of its function."""
    SITUATIONS[made.__name__.replace("_", "-")] = made
    return made


def ask(bed: Bed, *words: str, reader: str = TENANT) -> Answer:
    """Ask as the tenant, who has the role ``edit`` in the namespace and no other right."""
    code, text = product(bed.plane.kubeconfig(reader), "explain", *words)
    return ["explain", *words], code, text


def node(bed: Bed) -> str:
    """Make the node that pods of situations are placed on, once."""
    if bed.find(path(CORE_V1, "nodes", NODE)) is None:
        bed.node(NODE, *GPUS)
    return NODE


def closed(bed: Bed, **labels: str) -> str:
    """Make a namespace that has not opted in."""
    return bed.namespace("explained", opted_in=False, labels=labels)


def share(bed: Bed, namespace: str, name: str = "asking", memory: str = "4Gi", **annotations: str) -> Object:
    """Create a pod with a share as the tenant does, and wait until it has a node."""
    bed.create(namespace, objects.pod(name, memory, node=node(bed), **annotations))
    return bed.wait_bound(namespace, name)


def without(bed: Bed, namespace: str, memory: str, **annotations: str) -> None:
    """Create a pod that asks for a share where it gets none, and wait until it has a node."""
    bed.create(namespace, objects.pod("asking", memory, node=node(bed), **annotations))
    bed.wait_bound(namespace, "asking")


def prepare(bed: Bed, pod: Object, condition: Mapping[str, str] | None = None, mib: int | None = None) -> None:
    """Write what the driver writes of a claim that it prepared: the amounts on the containers, or ``mib``."""
    claim = bed.claim_of(pod)
    devices = [_entry(pod, each, condition, mib) for each in claim["status"]["allocation"]["devices"]["results"]]
    where = path(RESOURCE_V1, CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
    bed.cluster.patch(f"{where}/status", {"status": {"devices": devices}})


def _entry(pod: Object, result: Object, condition: Mapping[str, str] | None, mib: int | None) -> Object:
    entry = {key: result[key] for key in ("driver", "pool", "device", "shareID")}
    if result["request"] == SIDECAR:
        return entry
    spec = pod["spec"]
    limits = [
        {"container": each["name"], "memoryMiB": mib or int(variable["value"])}
        for each in [*spec.get("initContainers", []), *spec["containers"]]
        for variable in each.get("env", [])
        if variable["name"] == MEMORY_MIB and _uses(each, result["request"])
    ]
    reserved = parse_mib(result["consumedCapacity"]["memory"])
    data = {"uuid": GPU, "mode": "mps", "memoryMiB": reserved, "limits": limits, "podUid": pod["metadata"]["uid"]}
    conditions = (
        {"conditions": [{"type": LIMIT_IN_FORCE, "lastTransitionTime": TIME, **condition}]} if condition else {}
    )
    return {**entry, **conditions, "data": data}


def _uses(container: Object, request: str) -> bool:
    return any(each.get("request") == request for each in container.get("resources", {}).get("claims", []))


def status(bed: Bed, pod: Object, phase: str, state: Mapping[str, Any], restarts: int = 0, **more: Any) -> None:
    """Write what a kubelet writes of a pod whose containers are all in one state."""
    meta = pod["metadata"]
    statuses = [
        {"name": each["name"], "image": "x", "imageID": "", "ready": False, "restartCount": restarts, "state": state}
        for each in pod["spec"]["containers"]
    ]
    where = path(CORE_V1, PODS, meta["name"], meta["namespace"]) + "/status"
    bed.cluster.patch(where, {"status": {"phase": phase, "containerStatuses": statuses, **more}})


def ended(bed: Bed, pod: Object, phase: str, reason: str, code: int) -> None:
    """End a pod as its kubelet reports it, and wait until its claim is gone, as it then is."""
    claim = bed.claim_of(pod)["metadata"]
    state = {"terminated": {"reason": reason, "exitCode": code, "startedAt": TIME, "finishedAt": TIME}}
    status(bed, pod, phase, state)
    where = path(RESOURCE_V1, CLAIMS, claim["name"], claim["namespace"])
    bed.until("the claim of the pod is gone", lambda: bed.find(where) is None)


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
def deployment_refused(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    make(bed, namespace, objects.deployment(objects.pod("worker", "4GB"), 1))
    refused(bed, namespace)
    return ask(bed, "deploy/worker", "-n", namespace)


@situation
def deployment_with_the_annotation_on_itself(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    body = objects.deployment(objects.pod("worker"), 0)
    body["metadata"]["annotations"] = {MEMORY: "4Gi"}
    make(bed, namespace, body)
    return ask(bed, "deployment.apps/worker", "-n", namespace)


@situation
def deployment_that_runs(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    make(bed, namespace, objects.deployment(objects.pod("worker", "4Gi", node=node(bed)), 2))
    bed.until("both pods have a node", lambda: len(placed(bed, namespace)) == 2)
    for pod in placed(bed, namespace):
        status(bed, pod, "Running", {"running": {"startedAt": TIME}})
    kill(bed, placed(bed, namespace)[0])
    return ask(bed, "deploy/worker", "-n", namespace)


@situation
def deployment_where_nothing_is_shared(bed: Bed) -> Answer:
    namespace = closed(bed)
    make(bed, namespace, objects.deployment(objects.pod("worker", "4GB", node=node(bed)), 1))
    bed.until("its pod has a node", lambda: len(placed(bed, namespace)) == 1)
    return ask(bed, "deploy/worker", "-n", namespace)


@situation
def stateful_set_refused(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    body = objects.pod("worker", "4Gi")
    body["spec"]["hostPID"] = True
    make(bed, namespace, objects.stateful_set(body))
    refused(bed, namespace)
    return ask(bed, "sts/worker", "-n", namespace)


@situation
def job_that_was_killed(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    make(bed, namespace, objects.job(objects.pod("worker", "4Gi", node=node(bed))), BATCH_V1)
    bed.until("its pod has a node", lambda: len(placed(bed, namespace)) == 1)
    (pod,) = placed(bed, namespace)
    kill(bed, pod)
    ended(bed, pod, "Failed", "Error", 137)
    return ask(bed, "job/worker", "-n", namespace)


@situation
def cron_job_before_its_first_run(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    body = objects.cron_job(objects.pod("worker", "4Gi"))
    body["spec"]["suspend"] = True
    make(bed, namespace, body, BATCH_V1)
    return ask(bed, "cj/worker", "-n", namespace)


@situation
def json_of_a_killed_pod(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    pod = share(bed, namespace)
    prepare(bed, pod)
    status(bed, pod, "Running", {"running": {"startedAt": TIME}}, restarts=1)
    kill(bed, pod)
    return ask(bed, f"{namespace}/asking", "-o", "json")


@situation
def json_of_a_workload(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    make(bed, namespace, objects.deployment(objects.pod("worker", "4GB"), 1))
    refused(bed, namespace)
    return ask(bed, "deploy/worker", "-n", namespace, "-o", "json")


@situation
def workload_that_is_not_there(bed: Bed) -> Answer:
    return ask(bed, "ds/worker", "-n", bed.namespace("explained"))


def make(bed: Bed, namespace: str, body: Object, base: str = APPS_V1) -> None:
    """Create a workload as the tenant does."""
    bed.plane.cluster(TENANT).create(path(base, f"{body['kind'].lower()}s", namespace=namespace), body)


def placed(bed: Bed, namespace: str) -> list[Object]:
    """The pods of a namespace that have a node."""
    return [each for each in bed.list(PODS, namespace) if each["spec"].get("nodeName")]


def refused(bed: Bed, namespace: str) -> None:
    """Wait until a controller reports that it may not create a pod."""
    where = path(CORE_V1, "events", namespace=namespace)
    bed.until("a refusal is reported", lambda: bool(bed.cluster.list(where, fieldSelector="reason=FailedCreate")[0]))
