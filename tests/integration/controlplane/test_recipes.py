"""The recipes of ``docs/operators/recipes.md``: autoscalers, queues, GitOps tools, schedulers, priorities."""

from collections.abc import Iterator
from typing import Final

import pytest
import yaml

from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import PODS, TEMPLATES, Bed, template_name
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.test_placement import check_nothing_over_committed
from tests.support.recipes import block
from tests.testbed.cluster.controlplane import ADMIN

pytestmark = pytest.mark.controlplane
APPS_V1: Final = "/apis/apps/v1"
CLASSES: Final = path("/apis/scheduling.k8s.io/v1", "priorityclasses")
POOL: Final = "pool"
GATE: Final = "example.com/queue"
SCHEDULER: Final = "kube-scheduler"


@pytest.fixture(name="packing")
def _packing(bed: Bed) -> Iterator[str]:
    """The recipe's second profile in the one kube-scheduler; returns the profile's name."""
    file = bed.plane.root / "scheduler.yaml"
    usual = file.read_text()
    added = yaml.safe_load(block("Custom schedulers"))["profiles"]
    file.write_text(yaml.safe_dump({**yaml.safe_load(usual), "profiles": added}))
    bed.plane.again(bed.plane.drop(SCHEDULER))
    yield added[1]["schedulerName"]
    file.write_text(usual)
    bed.plane.again(bed.plane.drop(SCHEDULER))


def pool(bed: Bed, name: str, count: int) -> list[str]:
    names = [f"{name}-{number}" for number in range(count)]
    for each in names:
        bed.node(each, 16384, labels={POOL: name})
    return names


def share(name: str, memory: str, where: str, **spec: object) -> Object:
    body = objects.pod(name, memory)
    body["spec"] |= {"nodeSelector": {POOL: where}, **spec}
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "16"}}
    return body


def where(bed: Bed, namespace: str, *shares: Object) -> list[str]:
    """Create one after the other; returns their nodes."""
    found = []
    for each in shares:
        bed.create(namespace, each)
        found.append(bed.wait_bound(namespace, each["metadata"]["name"])["spec"]["nodeName"])
    return found


def test_a_second_profile_fills_one_node_after_the_other_where_the_first_spreads(bed: Bed, packing: str) -> None:
    namespace = bed.namespace("profiles")
    names = [*pool(bed, "packed", 3), *pool(bed, "spread", 3)]
    packed = (share(f"packed-{number}", "5Gi", "packed", schedulerName=packing) for number in range(4))
    first, *others, later = where(bed, namespace, *packed)
    assert others == [first, first]
    assert later != first, "a fourth share of 5Gi does not fit on a GPU of 16Gi"
    spread = where(bed, namespace, *(share(f"spread-{number}", "5Gi", "spread") for number in range(3)))
    assert sorted(spread) == names[3:]
    for each in {first, later, *spread}:
        check_nothing_over_committed(bed, each)


def test_a_share_that_fits_nowhere_says_so_as_autoscalers_want_it_and_takes_the_node_that_comes(bed: Bed) -> None:
    namespace = bed.namespace("scaled")
    pool(bed, "scaled", 1)
    for name in ("a", "b"):
        bed.create(namespace, share(name, "12Gi", "scaled"))
    bed.until("one is bound", lambda: any(bed.pod(namespace, name)["spec"].get("nodeName") for name in "ab"))
    (waits,) = (name for name in "ab" if not bed.pod(namespace, name)["spec"].get("nodeName"))
    assert "cannot allocate all claims" in bed.wait_unschedulable(namespace, waits)
    bed.node("scaled-later", 16384, labels={POOL: "scaled"})
    assert bed.wait_bound(namespace, waits)["spec"]["nodeName"] == "scaled-later"


def test_a_share_that_a_queue_holds_back_has_its_template_and_no_node_until_it_is_let_go(bed: Bed) -> None:
    namespace = bed.namespace("queued")
    pool(bed, "queued", 1)
    made = bed.create(namespace, share("held", "4Gi", "queued", schedulingGates=[{"name": GATE}]))
    template = path(RESOURCE_V1, TEMPLATES, template_name(made), namespace)
    bed.until("the template is there", lambda: bed.find(template) is not None)
    requests = bed.cluster.get(template)["spec"]["spec"]["devices"]["requests"]
    assert [(each["exactly"]["deviceClassName"], "capacity" in each["exactly"]) for each in requests] == [
        ("gpu-share.io", True), ("status.gpu-share.io", False),
    ]  # fmt: skip
    held = bed.pod(namespace, "held")
    assert held["spec"].get("nodeName") is None
    bed.cluster.patch(path(CORE_V1, PODS, "held", namespace), {"spec": {"schedulingGates": None}})
    bed.wait_bound(namespace, "held")


@pytest.fixture(name="classes")
def _classes(bed: Bed) -> Iterator[tuple[str, str]]:
    names = ("recipes-low", "recipes-high")
    for value, name in enumerate(names):
        body = {"metadata": {"name": name}, "value": 1000 * value, "globalDefault": False}
        bed.cluster.create(CLASSES, body)
    yield names
    for name in names:
        bed.cluster.delete(f"{CLASSES}/{name}")


def test_priority_ends_nobody_and_waits_for_room_like_any_other(bed: Bed, classes: tuple[str, str]) -> None:
    namespace, (low, high) = bed.namespace("priority"), classes
    pool(bed, "priority", 1)
    bed.create(namespace, share("runs", "12Gi", "priority", priorityClassName=low))
    bed.wait_bound(namespace, "runs")
    for name, of in (("patient", low), ("urgent", high)):
        bed.create(namespace, share(name, "12Gi", "priority", priorityClassName=of))
        bed.wait_unschedulable(namespace, name)
    assert bed.pod(namespace, "runs")["metadata"].get("deletionTimestamp") is None, "nobody was preempted"
    bed.delete_pod(namespace, "patient")
    bed.delete_pod(namespace, "runs")
    bed.wait_bound(namespace, "urgent")


def test_a_workload_stays_as_it_was_written_so_that_a_comparison_shows_nothing(bed: Bed) -> None:
    """What a GitOps tool compares is the Deployment, not its pods: a server-side dry-run changes nothing of it."""
    namespace = bed.namespace("gitops")
    pool(bed, "gitops", 1)
    body = objects.deployment(objects.pod("web", "1Gi", node="gitops-0"), 1)
    body["metadata"]["namespace"] = namespace
    manifests.apply(bed.plane.cluster(ADMIN), [body])
    bed.until("its pod is rewritten", lambda: [template_name(each) for each in bed.list(PODS, namespace)] != [])
    live = bed.cluster.get(path(APPS_V1, "deployments", "web", namespace))
    (again,) = manifests.apply(bed.cluster, [body], dryRun="All")
    assert (again["spec"], again["metadata"]["generation"]) == (live["spec"], live["metadata"]["generation"])
    assert "resourceClaims" not in live["spec"]["template"]["spec"]
