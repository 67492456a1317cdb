"""One container with shares of several GPUs, as the stock scheduler places it: how many, which, and which never."""

from collections.abc import Sequence

import pytest

from enforcer.nvml.types import Gpu
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import InventoryPolicy, device_name
from gpushare.contract import COMPUTE, DRIVER, GPUS, GPUS_OF, MEMORY_OF
from gpushare.kube_client import RESOURCE_V1, path
from tests.fakes.gpu.publish import publish_nodes
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, SLICES, Bed
from tests.integration.controlplane.checker import audit
from tests.integration.controlplane.objects import Object

pytestmark = pytest.mark.controlplane
BY_TURNS = InventoryPolicy(mode=Mode.TIME_SLICING)


def node(bed: Bed, name: str, machine: str, policy: InventoryPolicy = BY_TURNS) -> Sequence[Gpu]:
    bed.node(name, slices=False)
    return publish_nodes(bed.cluster, [name], machine, policy)[name]


def devices_of(bed: Bed, namespace: str, name: str) -> dict[str, list[str]]:
    """Request → devices, in order."""
    results = bed.claim_of(bed.wait_bound(namespace, name))["status"]["allocation"]["devices"]["results"]
    found: dict[str, list[str]] = {}
    for each in results:
        found.setdefault(each["request"], []).append(each["device"])
    return found


def consumed(bed: Bed, namespace: str, name: str) -> list[Object]:
    results = bed.claim_of(bed.pod(namespace, name))["status"]["allocation"]["devices"]["results"]
    return [each["consumedCapacity"] for each in results if each["request"] == "main"]


def test_two_gpus_are_two_and_as_much_is_taken_of_each(bed: Bed) -> None:
    namespace = bed.namespace("wide")
    pair = {device_name(gpu) for gpu in node(bed, "wide-pair", "pair-16g")}
    two = {GPUS: "2", COMPUTE: "30%"}
    bed.create(namespace, objects.pod("a", "6Gi", node="wide-pair", **two))
    assert set(devices_of(bed, namespace, "a")["main"]) == pair
    assert consumed(bed, namespace, "a") == [{"memory": "6Gi", "compute": "30"}] * 2
    bed.create(namespace, objects.pod("small", "8Gi", node="wide-pair"))
    bed.wait_bound(namespace, "small")
    # Both GPUs together have room for twice 6 GiB; one of them has not, and the other must not be taken twice.
    bed.create(namespace, objects.pod("b", "6Gi", node="wide-pair", **two))
    assert "cannot allocate all claims" in bed.wait_unschedulable(namespace, "b")
    bed.delete_pod(namespace, "small")
    assert set(devices_of(bed, namespace, "b")["main"]) == pair
    claims = [
        each for each in bed.cluster.list(path(RESOURCE_V1, CLAIMS, namespace=namespace))[0] if each.get("status")
    ]
    slices = bed.cluster.list(path(RESOURCE_V1, SLICES), fieldSelector="spec.nodeName=wide-pair")[0]
    assert audit(slices, claims, DRIVER).problems == []


def test_gpus_shared_through_mps_never_serve_a_container_together(bed: Bed) -> None:
    namespace = bed.namespace("wide")
    node(bed, "wide-mps", "pair-16g", InventoryPolicy())
    bed.create(namespace, objects.pod("one", "1Gi", node="wide-mps", **{GPUS: "1"}))
    bed.wait_bound(namespace, "one")
    bed.create(namespace, objects.pod("two", "1Gi", node="wide-mps", **{GPUS: "2"}))
    assert "cannot allocate all claims" in bed.wait_unschedulable(namespace, "two")
    publish_nodes(bed.cluster, ["wide-mps"], "pair-16g", BY_TURNS)
    bed.wait_bound(namespace, "two")


def test_others_of_the_pod_stay_together_on_one_gpu(bed: Bed) -> None:
    namespace = bed.namespace("wide")
    node(bed, "wide-quad", "quad-16g")
    asked = {GPUS_OF + "main": "3", MEMORY_OF + "b": "9Gi", MEMORY_OF + "c": "5Gi"}
    body = objects.pod("a", "10Gi", node="wide-quad", **asked)
    body["spec"]["containers"] += [{"name": each, "image": "example.invalid/app:1"} for each in ("b", "c")]
    bed.create(namespace, body)
    found = devices_of(bed, namespace, "a")
    assert len(set(found["main"])) == 3
    assert found["b"] == found["c"]
    assert found["b"][0] not in found["main"], "there is no room for it beside 10Gi"
