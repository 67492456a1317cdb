"""A hundred nodes and four hundred sharing pods: every promise kept, by a checker that shares no code with us."""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gpushare.cluster import CORE_V1, RESOURCE_V1, path
from gpushare.contract import COMPUTE, DRIVER
from tests.controlplane import objects
from tests.controlplane.bed import CLAIMS, PODS, SLICES, TEMPLATES, Bed, template_name
from tests.controlplane.checker import Audit, audit
from tests.controlplane.objects import Object
from tests.fakegpu.publish import publish_nodes

pytestmark = pytest.mark.controlplane
NODES, PODS_IN_ALL, NAMESPACES = 100, 400, 4
SIZES = (
    ("1Gi", None),
    ("2Gi", "10%"),
    ("3Gi", "25%"),
    ("4Gi", None),
    ("6500Mi", "50%"),
    ("12Gi", "75%"),
)
WRITERS = 8
FLEET = "test.gpu-share.io/fleet"


@contextmanager
def fleet(bed: Bed, name: str, count: int, machine: str) -> Iterator[None]:
    """Nodes that only pods of this test ask for; their GPUs are published by the agent's own code."""
    names = [f"{name}-{number}" for number in range(count)]
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda each: bed.node(each, labels={FLEET: name}, slices=False), names))
        list(pool.map(lambda each: publish_nodes(bed.cluster, [each], machine), names))
    yield
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda each: bed.cluster.delete(path(CORE_V1, "nodes", each)), names))
    for item in bed.cluster.list(path(RESOURCE_V1, SLICES))[0]:
        if item["spec"]["nodeName"] in names:
            bed.remove(path(RESOURCE_V1, SLICES, item["metadata"]["name"]))


def pods(name: str, count: int, sizes: Iterable[tuple[str, str | None]]) -> list[Object]:
    made = []
    for number, (memory, compute) in zip(range(count), itertools.cycle(sizes), strict=False):
        body = objects.pod(f"{name}-{number}", memory, **({COMPUTE: compute} if compute else {}))
        body["spec"]["nodeSelector"] = {FLEET: name}
        made.append(body)
    return made


def create_all(bed: Bed, namespaces: list[str], bodies: list[Object]) -> None:
    tenant = bed.plane.cluster("tenant")

    def create(pair: tuple[str, Object]) -> Object:
        return tenant.create(path(CORE_V1, PODS, namespace=pair[0]), pair[1])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(create, zip(itertools.cycle(namespaces), bodies, strict=False)))


def stored(bed: Bed, namespaces: list[str], kind: str) -> list[Object]:
    return [each for namespace in namespaces for each in bed.list(kind, namespace)]


def bound(bed: Bed, namespaces: list[str]) -> int:
    return sum(bool(pod["spec"].get("nodeName")) for pod in stored(bed, namespaces, PODS))


def check(bed: Bed, namespaces: list[str]) -> Audit:
    """Nothing over-committed, and exactly the templates that pods name."""
    found = audit(bed.cluster.list(path(RESOURCE_V1, SLICES))[0], stored(bed, namespaces, CLAIMS), DRIVER)
    assert found.problems == []
    named = {(pod["metadata"]["namespace"], template_name(pod)) for pod in stored(bed, namespaces, PODS)}
    there = stored(bed, namespaces, TEMPLATES)
    assert {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in there} == named
    return found


def delete_all(bed: Bed, namespaces: list[str]) -> None:
    for namespace in namespaces:
        bed.empty(namespace)
    bed.until("no template is left over", lambda: stored(bed, namespaces, TEMPLATES) == [], seconds=120)
    bed.until("no claim is left over", lambda: stored(bed, namespaces, CLAIMS) == [], seconds=120)


@pytest.mark.timeout(400)
def test_four_hundred_pods_on_a_hundred_nodes(bed: Bed) -> None:
    answered = [bed.metric(each, "gpu_share_admission_requests_total") for each in bed.replicas]
    started = time.monotonic()
    with fleet(bed, "large", NODES, "quad-16g"):
        namespaces = [bed.namespace("scale") for _ in range(NAMESPACES)]
        ready = time.monotonic()
        create_all(bed, namespaces, pods("large", PODS_IN_ALL, SIZES))
        created = time.monotonic()
        bed.until("all pods are bound", lambda: bound(bed, namespaces) == PODS_IN_ALL, seconds=180)
        placed = time.monotonic()
        found = check(bed, namespaces)
        assert (found.claims, found.shares) == (PODS_IN_ALL, PODS_IN_ALL)
        per_gpu = Counter(found.per_device.values())
        shares = [bed.metric(each, "gpu_share_admission_requests_total") for each in bed.replicas]
        delete_all(bed, namespaces)
    ended = time.monotonic()
    work = [int(now - before) for now, before in zip(shares, answered, strict=True)]
    assert len(work) == 3, "three replicas"
    assert all(work), f"every replica answered: {work}"
    print(
        f"\n{NODES} nodes x 4 GPUs ready in {ready - started:.1f} s; {PODS_IN_ALL} pods created in"
        f" {created - ready:.1f} s, all bound {placed - ready:.1f} s after the first; reviews by replica {work};"
        f" shares per used GPU {dict(sorted(per_gpu.items()))}; all gone again in {ended - placed:.1f} s"
    )


@pytest.mark.timeout(200)
def test_when_there_is_less_room_than_pods_the_rest_waits(bed: Bed) -> None:
    """Ten GPUs of 14.5 GiB to give away, sixty pods of 3 GiB: four fit on each, twenty wait, none is promised twice."""
    with fleet(bed, "scarce", 5, "pair-16g"):
        namespaces = [bed.namespace("scarce")]
        create_all(bed, namespaces, pods("scarce", 60, [("3Gi", None)]))
        bed.until("forty pods are bound", lambda: bound(bed, namespaces) == 40, seconds=60)
        for pod in stored(bed, namespaces, PODS):
            if not pod["spec"].get("nodeName"):
                bed.wait_unschedulable(namespaces[0], pod["metadata"]["name"])
        found = check(bed, namespaces)
        assert (found.shares, set(found.per_device.values())) == (40, {4})
        delete_all(bed, namespaces)
