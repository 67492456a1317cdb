"""The policy that warns: of annotations without effect and of amounts that are refused, with no webhook running."""

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import urllib3
import yaml

from gpushare.contract import COMPUTE, GPUS, MAX_COMPUTE, MAX_MEMORY, MEMORY, MEMORY_OF, MIG_PROFILE, NAMESPACE_LABEL
from gpushare.errors import PolicyDenied
from gpushare.kube_client import MERGE_PATCH, KubeClient, path
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from tests.integration.controlplane import objects
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import World
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

pytestmark = pytest.mark.controlplane
EXAMPLES: Final = Path(__file__).parents[4] / "examples"
OF_AMOUNTS: Final = frozenset({Reason.INVALID_QUANTITY, Reason.BELOW_MINIMUM, Reason.ABOVE_MAXIMUM})
RESOURCES: Final = {
    "Pod": ("/api/v1", "pods"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "Job": ("/apis/batch/v1", "jobs"),
    "CronJob": ("/apis/batch/v1", "cronjobs"),
}
SIX: Final = tuple(kind for kind in RESOURCES if kind != "Pod")
MOST: Final = {MAX_MEMORY: "20Gi", MAX_COMPUTE: "50%"}
"""What the namespace of all workloads allows that have opted in."""
GOOD: Final = 200


class Listening(KubeClient):
    """An administrator's connection that keeps the warnings of the last answer."""

    heard: tuple[str, ...] = ()

    def _send(self, *args: Any, **kwargs: Any) -> urllib3.BaseHTTPResponse:
        response = super()._send(*args, **kwargs)
        self.heard = tuple(each for each in response.headers.getlist("Warning") if "gpu-share" in each)
        return response


def _replica_set(pod: Object) -> Object:
    made = objects.deployment(pod, 1)
    return {**made, "kind": "ReplicaSet"}


def _daemon_set(pod: Object) -> Object:
    made = objects.deployment(pod, 1)
    del made["spec"]["replicas"]
    return {**made, "kind": "DaemonSet"}


MAKERS: Final[Mapping[str, Callable[[Object], Object]]] = {
    "Pod": lambda pod: pod,
    "Deployment": lambda pod: objects.deployment(pod, 1),
    "StatefulSet": objects.stateful_set,
    "DaemonSet": _daemon_set,
    "ReplicaSet": _replica_set,
    "Job": objects.job,
    "CronJob": objects.cron_job,
}


def workload(kind: str, asked: Mapping[str, str], own: Mapping[str, str] | None = None) -> Object:
    """A workload whose pods have the annotations ``asked``; ``own`` are those of the object itself."""
    pod = objects.pod("it", **asked)
    pod["spec"]["automountServiceAccountToken"] = False
    made = MAKERS[kind](pod)
    if own:
        made["metadata"] = {**made["metadata"], "annotations": {**own}}
    return made


def warnings(listener: Listening, namespace: str, item: Object, **query: str) -> str:
    """Create an object in a dry run; return the warnings of ours as one text, empty where there is none."""
    base, plural = RESOURCES[item["kind"]]
    listener.create(path(base, plural, namespace=namespace), item, dryRun="All", **query)
    return "\n".join(listener.heard)


@pytest.fixture(scope="module")
def listener(world: World) -> Listening:
    return Listening.connect(str(world.plane.kubeconfig()))


@pytest.fixture(scope="module")
def opted_in(world: World) -> str:
    return _namespace(world, {NAMESPACE_LABEL: "true"}, MOST)


@pytest.fixture(scope="module")
def closed(world: World) -> str:
    return _namespace(world, {}, {})


def _namespace(world: World, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    name = world.make_namespace(labels)
    world.cluster.patch(
        path("/api/v1", "namespaces", name), {"metadata": {"annotations": dict(annotations)}}, MERGE_PATCH
    )
    return name


TEMPLATE: Final = {"CronJob": "spec.jobTemplate.spec.template.metadata.annotations"}
IN_A_TEMPLATE: Final = "spec.template.metadata.annotations"

NOT_OPTED_IN: Final[tuple[tuple[dict[str, str], dict[str, str]], ...]] = (({MEMORY: "4Gi"}, {}), ({}, {MEMORY: "4Gi"}))
MISPLACED: Final[tuple[tuple[dict[str, str], dict[str, str]], ...]] = (
    ({}, {MEMORY: "4Gi"}),
    ({}, {f"{MEMORY_OF}main": "4Gi"}),
    ({MEMORY: "4Gi"}, {COMPUTE: "20%"}),
    ({}, {"GPU-share.io/memory": "4Gi"}),
)
REFUSED: Final = (
    (MEMORY, "4GB"), (MEMORY, "4096"), (f"{MEMORY_OF}main", "4gi"), (MEMORY, "256Mi"), (MEMORY, "0Gi"),
    (MEMORY, "20481Mi"), (MEMORY, "99999999999Ti"), (MEMORY, "4Gi\n\u0664Gi"), (COMPUTE, "150%"), (COMPUTE, "half"),
    (COMPUTE, "51%"), (GPUS, "0"), (GPUS, "17"), (MIG_PROFILE, "1g.10GB"),
)  # fmt: skip


@pytest.mark.parametrize("kind", SIX)
@pytest.mark.parametrize(("asked", "own"), NOT_OPTED_IN)
def test_a_workload_of_a_namespace_that_has_not_opted_in_is_warned_about(
    listener: Listening, closed: str, kind: str, asked: dict[str, str], own: dict[str, str]
) -> None:
    assert f"kubectl label namespace {closed} {NAMESPACE_LABEL}=true" in warnings(
        listener, closed, workload(kind, asked, own)
    )


@pytest.mark.parametrize("kind", SIX)
@pytest.mark.parametrize(("asked", "own"), MISPLACED)
def test_an_annotation_on_the_object_instead_of_its_pod_template_is_warned_about(
    listener: Listening, opted_in: str, kind: str, asked: dict[str, str], own: dict[str, str]
) -> None:
    found = warnings(listener, opted_in, workload(kind, asked, own))
    assert next(iter(own)) in found
    assert TEMPLATE.get(kind, IN_A_TEMPLATE) in found


@pytest.mark.parametrize("kind", SIX)
@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_an_amount_that_the_webhook_would_refuse_is_warned_about(
    listener: Listening, opted_in: str, kind: str, key: str, value: str
) -> None:
    found = warnings(listener, opted_in, workload(kind, {key: value}))
    assert "\n" in value or f"{TEMPLATE.get(kind, IN_A_TEMPLATE)}[{key}]" in found
    assert found


def test_every_problem_of_a_workload_is_in_its_warnings(listener: Listening, closed: str) -> None:
    found = warnings(listener, closed, workload("Job", {MEMORY: "4GB", COMPUTE: "0"}, {GPUS: "1"}))
    assert all(each in found for each in (NAMESPACE_LABEL, f"[{MEMORY}]", f"[{COMPUTE}]", GPUS))


def test_the_jobs_of_a_cron_job_pass_their_annotations_to_no_pod(listener: Listening, opted_in: str) -> None:
    item = workload("CronJob", {})
    item["spec"]["jobTemplate"]["metadata"] = {"annotations": {MEMORY: "4Gi"}}
    assert TEMPLATE["CronJob"] in warnings(listener, opted_in, item)


def test_a_pod_of_a_namespace_that_has_not_opted_in_is_warned_about(listener: Listening, closed: str) -> None:
    assert NAMESPACE_LABEL in warnings(listener, closed, workload("Pod", {MEMORY: "4Gi"}))


def test_a_namespace_that_cannot_opt_in_is_not_advised_to(listener: Listening) -> None:
    found = warnings(listener, "kube-system", workload("Deployment", {MEMORY: "4Gi"}))
    assert "kube-system" in found
    assert "kubectl" not in found


def test_a_change_is_warned_about_as_a_new_object_is(world: World, listener: Listening, opted_in: str) -> None:
    where = path("/apis/apps/v1", "deployments", "changed", opted_in)
    item = workload("Deployment", {MEMORY: "4Gi"})
    item["metadata"]["name"] = "changed"
    item["spec"]["replicas"] = 0
    world.cluster.create(path("/apis/apps/v1", "deployments", namespace=opted_in), item)
    change = {"spec": {"template": {"metadata": {"annotations": {MEMORY: "4GB"}}}}}
    listener.patch(where, change, MERGE_PATCH)
    assert any(f"[{MEMORY}]" in each for each in listener.heard)


def test_what_a_controller_writes_is_not_warned_about(listener: Listening, closed: str) -> None:
    item = workload("ReplicaSet", {MEMORY: "4Gi"})
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "it", "uid": "it", "controller": True}
    item["metadata"]["ownerReferences"] = [owner]
    assert warnings(listener, closed, item) == ""


# Nothing good is warned about


def drawn(choose: random.Random) -> dict[str, str]:
    """Annotations of a pod: amounts as people write them, about half of which the webhook admits."""
    number = choose.choice(
        (f"{choose.randint(0, 24)}", f"{choose.randint(0, 30)}.{choose.randint(0, 999)}", "0004", "536")
    )
    unit = choose.choice(("Gi", "Gi", "Gi", "G", "Mi", "M", "Ti", "GB", ""))
    large = choose.choice((f"{choose.randint(500, 21000)}Mi", f"{choose.randint(530, 540)}.{choose.randint(0, 99)}M"))
    asked = {choose.choice((MEMORY, f"{MEMORY_OF}main")): choose.choice((number + unit, large))}
    if choose.random() < 0.4:
        asked[COMPUTE] = f"{choose.randint(0, 60)}{choose.choice(('%', '', '', ' %'))}"
    return asked | ({GPUS: choose.choice(("1", "1", "01"))} if choose.random() < 0.2 else {})


def admitted(asked: Mapping[str, str]) -> bool:
    """Ask the webhook's own function, which runs here and not on the control plane."""
    try:
        mutate_pod(
            objects.pod("it", **asked),
            policy=NamespacePolicy.from_annotations(MOST),
            settings=Settings(several_gpus="refuse"),
        )
    except PolicyDenied as error:
        assert {each.reason for each in error.problems} <= OF_AMOUNTS | {Reason.INVALID_VALUE}, error
        return False
    return True


def variants(choose: random.Random, asked: dict[str, str]) -> Object:
    """A workload of some kind, which may have the annotations on the object as well."""
    own = choose.choice(({}, {}, asked, {"example.org/gpu-share.io": "4Gi", "xgpu-share.io/memory": "4"}))
    return workload(choose.choice(tuple(RESOURCES)[1:]), asked, own)


def test_a_drawn_workload_is_warned_about_only_if_the_webhook_refuses_its_pods(
    listener: Listening, opted_in: str
) -> None:
    choose, good, bad = random.Random(25), 0, 0
    missed, needless = list[Object](), list[str]()
    while good < GOOD:
        asked = drawn(choose)
        fine, found = admitted(asked), warnings(listener, opted_in, variants(choose, asked))
        good, bad = good + fine, bad + (not fine)
        needless += [found] if fine and found else []
        missed += [] if fine or found else [asked]
    print(f"\n{good} good workloads, {len(needless)} warned about; {bad} bad ones, {len(missed)} not warned about")
    assert needless == []
    assert missed == []


@pytest.mark.parametrize(("memory", "compute"), [("20Gi", "50%"), ("512Mi", "1"), ("511.5Mi", "007%")])
def test_amounts_at_the_edge_of_what_is_admitted_are_not_warned_about(
    listener: Listening, opted_in: str, memory: str, compute: str
) -> None:
    asked = {MEMORY: memory, COMPUTE: compute}
    assert admitted(asked)
    assert warnings(listener, opted_in, workload("Job", asked)) == ""


def test_nothing_is_warned_about_where_nobody_asks(listener: Listening, closed: str) -> None:
    foreign = {"example.org/gpu-share.io": "4Gi", "xgpu-share.io/memory": "4"}
    assert "".join(warnings(listener, closed, workload(kind, foreign, foreign)) for kind in RESOURCES) == ""


def examples() -> Iterator[Any]:
    for file in sorted(EXAMPLES.rglob("*.yaml")):
        for number, item in enumerate(yaml.safe_load_all(file.read_text())):
            if item["kind"] in RESOURCES:
                yield pytest.param(item, id=f"{file.relative_to(EXAMPLES)}-{number}")


@pytest.mark.parametrize("item", tuple(examples()))
def test_no_example_is_warned_about(world: World, listener: Listening, opted_in: str, item: Object) -> None:
    """A bare Pod is denied here, without the webhook; as the template of a Deployment it is not."""
    item["metadata"].pop("namespace", None)
    if item["kind"] == "Pod":
        item = objects.deployment({**item, "spec": {**item["spec"], "restartPolicy": "Always"}}, 1)
    assert warnings(listener, world.namespace, item) == ""


def test_the_policy_needs_no_webhook(world: World) -> None:
    where = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    assert world.cluster.list(where)[0] == []


def test_more_annotations_than_a_message_has_room_for_are_warned_about_in_words(
    listener: Listening, opted_in: str
) -> None:
    """Without a short message of its own, Kubernetes shows the expression that failed."""
    many = {f"{MEMORY_OF}c{number}": "4Gi" for number in range(1000)}
    found = warnings(listener, opted_in, workload("CronJob", {}, many))
    assert "pod template" in found
    assert "failed expression" not in found
