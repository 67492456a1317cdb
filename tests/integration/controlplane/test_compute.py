"""How much compute of a GPU the stock scheduler gives away, and a GPU that one pod has for itself."""

import pytest

from enforcer.resourceslices.devices import InventoryPolicy, quantity
from gpushare.contract import COMPUTE, DEVICE_CLASS, OWN_CLAIMS
from gpushare.kube_client import RESOURCE_V1, path
from tests.fakes.gpu.publish import publish_nodes
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, Bed

pytestmark = pytest.mark.controlplane
SINGLE = "single-16g"


def place(bed: Bed, namespace: str, node: str, name: str, compute: str) -> None:
    bed.create(namespace, objects.pod(name, "1Gi", node=node, **{COMPUTE: compute}))


@pytest.mark.parametrize(("percent", "fitting", "rest"), [(100, 2, "1%"), (150, 3, "1%"), (120, 2, "21%")])
def test_as_much_compute_is_placed_as_is_offered_and_no_more(bed: Bed, percent: int, fitting: int, rest: str) -> None:
    namespace, node = bed.namespace("compute"), f"compute-{percent}"
    bed.node(node, slices=False)
    publish_nodes(bed.cluster, [node], SINGLE, InventoryPolicy(compute=percent))
    for number in range(fitting):
        place(bed, namespace, node, f"half-{number}", "50%")
        bed.wait_bound(namespace, f"half-{number}")
    place(bed, namespace, node, "beyond", rest)
    assert "cannot allocate all claims" in bed.wait_unschedulable(namespace, "beyond")
    bed.create(namespace, objects.pod("modest", "1Gi", node=node))
    bed.wait_bound(namespace, "modest")


def test_one_container_has_all_of_a_gpu_at_most_however_much_is_offered(bed: Bed) -> None:
    namespace = bed.namespace("compute")
    bed.node("compute-once", slices=False)
    publish_nodes(bed.cluster, ["compute-once"], SINGLE, InventoryPolicy(compute=300))
    requests = {"memory": "1Gi", "compute": "101"}
    exactly = {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": requests}}
    body = {"metadata": {"name": "greedy"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    bed.cluster.create(path(RESOURCE_V1, CLAIMS, namespace=namespace), body)
    pod = objects.pod("greedy", node="compute-once")
    pod["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "greedy"}]
    bed.create(namespace, pod)
    bed.wait_unschedulable(namespace, "greedy", "cannot allocate all claims")


def test_a_lower_offer_evicts_nobody_and_places_nothing_until_the_sum_is_below_it(bed: Bed) -> None:
    namespace = bed.namespace("compute")
    bed.node("compute-less", slices=False)
    publish_nodes(bed.cluster, ["compute-less"], SINGLE, InventoryPolicy(compute=150))
    for name in "abc":
        place(bed, namespace, "compute-less", name, "50%")
        bed.wait_bound(namespace, name)
    publish_nodes(bed.cluster, ["compute-less"], SINGLE, InventoryPolicy())
    place(bed, namespace, "compute-less", "d", "50%")
    bed.wait_unschedulable(namespace, "d")
    bed.delete_pod(namespace, "a")
    bed.delete_pod(namespace, "b")
    bed.wait_bound(namespace, "d")
    assert bed.pod(namespace, "c")["spec"]["nodeName"] == "compute-less"


def test_a_claim_that_asks_for_no_amount_has_the_gpu_for_itself(bed: Bed) -> None:
    namespace = bed.namespace("whole", annotations={OWN_CLAIMS: "any"})
    bed.node("whole", slices=False)
    (gpus,) = publish_nodes(bed.cluster, ["whole"], SINGLE).values()
    request = {"name": "gpu", "exactly": {"deviceClassName": DEVICE_CLASS}}
    body = {"metadata": {"name": "all"}, "spec": {"devices": {"requests": [request]}}}
    where = path(RESOURCE_V1, CLAIMS, namespace=namespace)
    bed.cluster.create(where, body)
    pod = objects.pod("all", node="whole")
    pod["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "all"}]
    bed.create(namespace, pod)
    bed.wait_bound(namespace, "all")
    (result,) = bed.cluster.get(f"{where}/all")["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"]["memory"] == quantity(gpus[0].memory_mib - gpus[0].reserved_mib - 1024)
    bed.create(namespace, objects.pod("small", "512Mi", node="whole"))
    bed.wait_unschedulable(namespace, "small")
    bed.delete_pod(namespace, "all")
    bed.wait_bound(namespace, "small")
