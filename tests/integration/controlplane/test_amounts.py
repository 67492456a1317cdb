"""A total for a namespace in MiB and percent: a stock ResourceQuota holds it, however many pods come at once."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest

from gpushare import contract
from gpushare.kube_client import CORE_V1, path
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, PODS, Bed
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.test_placement import check_nothing_over_committed
from tests.support.extent import trials

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(1800)]
MIB: Final = f"{contract.MEMORY_COUNT_CLASS}{contract.DEVICE_QUOTA}"
PERCENT: Final = f"{contract.COMPUTE_COUNT_CLASS}{contract.DEVICE_QUOTA}"
FITS: Final = 24
EACH: Final = 512
PASSED: Final = 2
"""More may pass on an overloaded control plane; one was seen.

The likely cause is a count of Kubernetes that overwrites a newer one (kubernetes/kubernetes#123434, open).
"""
CROWD: Final = trials(200, 1000)
AT_ONCE: Final = 16
SECONDS: Final = 120 + CROWD / 2
"""The controller-manager makes 20 requests a second, and tries each pod that waits again and again."""


def team(bed: Bed, **hard: int) -> str:
    """A namespace with a quota that counts already."""
    namespace = bed.namespace("amounts", annotations={contract.COUNT_AMOUNTS: "true"})
    limits = {{"mib": MIB, "percent": PERCENT}[name]: str(number) for name, number in hard.items()}
    bed.cluster.create(
        path(CORE_V1, "resourcequotas", namespace=namespace), {"metadata": {"name": "total"}, "spec": {"hard": limits}}
    )
    bed.until("the quota counts", lambda: set(used(bed, namespace)) == set(limits))
    return namespace


def used(bed: Bed, namespace: str) -> dict[str, int]:
    status = bed.cluster.get(path(CORE_V1, "resourcequotas", "total", namespace)).get("status", {})
    return {name: int(number) for name, number in status.get("used", {}).items()}


def reserved(bed: Bed, namespace: str) -> int:
    """MiB that the requests of all claims reserve, by the claims themselves."""
    return sum(map(mib_of, bed.list(CLAIMS, namespace)))


def mib_of(claim: Object) -> int:
    exact = [each["exactly"] for each in claim["spec"]["devices"]["requests"] if "exactly" in each]
    amounts = [(each["capacity"]["requests"]["memory"], each.get("count", 1)) for each in exact]
    return sum(whole(memory) * count for memory, count in amounts)


def whole(memory: str) -> int:
    number, unit = int(memory[:-2]), memory[-2:]
    return number * {"Mi": 1, "Gi": 1024}[unit]


def bound(bed: Bed, namespace: str) -> list[Object]:
    return [each for each in bed.list(PODS, namespace) if each["spec"].get("nodeName")]


def test_of_many_pods_at_once_as_many_get_a_claim_as_the_quota_allows(bed: Bed) -> None:
    bed.node("amounts", *[16384] * 4)
    namespace = team(bed, mib=FITS * EACH + EACH // 2)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        body = partial(objects.pod, memory=f"{EACH}Mi", node="amounts")
        made = [pool.submit(bed.create, namespace, body(f"p{number}")) for number in range(CROWD)]
        while not all(each.done() for each in made):
            assert reserved(bed, namespace) <= (FITS + PASSED) * EACH
            time.sleep(0.1)  # the API server has others to answer
        assert [each.exception() for each in made] == [None] * CROWD
    bed.until("all that fit are bound", lambda: len(bound(bed, namespace)) >= FITS, SECONDS)
    bed.until("all of them are counted", lambda: used(bed, namespace) == {MIB: reserved(bed, namespace)}, SECONDS)
    assert len(bound(bed, namespace)) <= FITS + PASSED
    check_nothing_over_committed(bed, "amounts")
    gone = {each["metadata"]["name"] for each in bound(bed, namespace)[: PASSED + 2]}
    for name in gone:
        bed.delete_pod(namespace, name)
    bed.until(
        "others take their places",
        lambda: len({each["metadata"]["name"] for each in bound(bed, namespace)} - gone) >= FITS,
        SECONDS,
    )
    assert reserved(bed, namespace) <= (FITS + PASSED) * EACH
    bed.empty(namespace)
    bed.until("nothing is used", lambda: used(bed, namespace) == {MIB: 0}, SECONDS)


def pod_of(containers: Sequence[Object], inits: Sequence[Object] = (), **annotations: str) -> Object:
    body = objects.pod("p", **annotations)
    body["spec"] |= {"containers": [*containers], "initContainers": [*inits]}
    return body


@pytest.mark.parametrize(
    ("annotations", "mib", "percent"),
    [
        ({contract.MEMORY: "2Gi", contract.COMPUTE: "25%"}, 2048, 25),
        ({contract.MEMORY: "2Gi", f"{contract.MEMORY_OF}second": "1Gi"}, 3072, 0),
        ({contract.MEMORY: "2Gi", f"{contract.MEMORY_OF}prepare": "5Gi"}, 5120, 0),
        ({contract.MEMORY: "2Gi", f"{contract.MEMORY_OF}second": "1Gi", contract.SAME_GPU: "false"}, 3072, 0),
        ({contract.MEMORY: "2Gi", contract.GPU_MODEL: "A100"}, 2048, 0),
    ],
)
def test_what_is_counted_is_what_the_claim_reserves(
    bed: Bed, annotations: dict[str, str], mib: int, percent: int
) -> None:
    namespace = team(bed, mib=100_000, percent=1000)
    image = "example.invalid/app:1"
    apps = [{"name": "main", "image": image}, {"name": "second", "image": image}]
    bed.create(namespace, pod_of(apps, [{"name": "prepare", "image": image}], **annotations))
    bed.until("the claim is counted", lambda: used(bed, namespace) == {MIB: mib, PERCENT: percent})
    assert reserved(bed, namespace) == mib
    bed.empty(namespace)


def test_a_pod_that_would_exceed_the_total_waits_and_says_why(bed: Bed) -> None:
    namespace = team(bed, mib=1024)
    bed.create(namespace, objects.pod("p", "2Gi"))

    def said() -> bool:
        events = bed.cluster.list(path(CORE_V1, "events", namespace=namespace))[0]
        return any(f"exceeded quota: total, requested: {MIB}=2048" in each.get("message", "") for each in events)

    bed.until("an Event says why", said)
    bed.empty(namespace)


def test_without_the_annotation_a_quota_on_amounts_lets_no_share_through(bed: Bed) -> None:
    namespace = bed.namespace("amounts")
    quota = {"metadata": {"name": "total"}, "spec": {"hard": {MIB: "4096"}}}
    bed.cluster.create(path(CORE_V1, "resourcequotas", namespace=namespace), quota)
    bed.until("the quota counts", lambda: used(bed, namespace) == {MIB: 0})
    bed.create(namespace, objects.pod("p", "1Gi"))

    def said() -> bool:
        events = bed.cluster.list(path(CORE_V1, "events", namespace=namespace))[0]
        return any(contract.COUNT_AMOUNTS in each.get("message", "") for each in events)

    bed.until("an Event names the annotation", said)
    assert bed.list(CLAIMS, namespace) == []
    bed.empty(namespace)
