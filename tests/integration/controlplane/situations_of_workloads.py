"""Situations of workloads that ``gpu-share explain`` is asked about; ``situating`` says how they are made."""

from gpushare.contract import MEMORY
from gpushare.kube_client import APPS_V1, BATCH_V1, CORE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import PODS, Bed
from tests.integration.controlplane.explaining import kill
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.situating import TIME, Answer, ask, closed, ended, node, situation, status
from tests.testbed.cluster.controlplane import TENANT


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
    job = path(BATCH_V1, "jobs", "worker", namespace)
    bed.until("the Job has failed", lambda: has_failed(bed.cluster.get(job)))
    return ask(bed, "job/worker", "-n", namespace)


@situation
def cron_job_before_its_first_run(bed: Bed) -> Answer:
    namespace = bed.namespace("explained")
    body = objects.cron_job(objects.pod("worker", "4Gi"))
    body["spec"]["suspend"] = True
    make(bed, namespace, body, BATCH_V1)
    return ask(bed, "cj/worker", "-n", namespace)


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


def has_failed(job: Object) -> bool:
    """Whether the controller has given a Job up."""
    return any(each["type"] == "Failed" for each in job["status"].get("conditions", []))


def placed(bed: Bed, namespace: str) -> list[Object]:
    """The pods of a namespace that have a node."""
    return [each for each in bed.list(PODS, namespace) if each["spec"].get("nodeName")]


def refused(bed: Bed, namespace: str) -> None:
    """Wait until a controller reports that it may not create a pod."""
    where = path(CORE_V1, "events", namespace=namespace)
    bed.until("a refusal is reported", lambda: bool(bed.cluster.list(where, fieldSelector="reason=FailedCreate")[0]))
