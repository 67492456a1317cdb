"""MIG instances: asked for by annotation, chosen by the stock scheduler, each for one pod."""

import pytest

from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import InventoryPolicy, device_name
from gpushare.contract import MIG_DEVICE_CLASS, MIG_PROFILE, SIDECAR
from tests.fakes.gpu.publish import publish_nodes
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed

pytestmark = pytest.mark.controlplane


def test_a_pod_gets_an_instance_of_its_profile_beside_shares_and_a_third_waits(bed: Bed) -> None:
    namespace = bed.namespace("mig")
    bed.node("cut", slices=False)
    (gpus,) = publish_nodes(bed.cluster, ["cut"], "mig", InventoryPolicy(mode=Mode.MIG)).values()
    small = {device_name(gpu) for gpu in gpus if gpu.profile == "1g.10gb"}

    def create(name: str) -> None:
        body = objects.pod(name, "1Gi", node="cut")
        body["metadata"]["annotations"] = {MIG_PROFILE: "1g.10gb"}
        bed.create(namespace, body)

    create("a")
    create("b")
    bed.create(namespace, objects.pod("share", "4Gi", node="cut"))
    found = [bed.gpus_of(bed.wait_bound(namespace, name)) for name in ("a", "b")]
    create("c")  # not before: the scheduler takes them in no order
    assert {each["main"] for each in found} == small
    assert all(each[SIDECAR] == "status" for each in found)
    shared = bed.gpus_of(bed.wait_bound(namespace, "share"))["main"]
    assert shared == device_name(next(gpu for gpu in gpus if not gpu.parent and not gpu.mig_enabled))
    assert "cannot allocate all claims" in bed.wait_unschedulable(namespace, "c")
    requests = bed.claim_of(bed.pod(namespace, "a"))["spec"]["devices"]["requests"]
    assert requests[0]["exactly"]["deviceClassName"] == MIG_DEVICE_CLASS
    bed.delete_pod(namespace, "a")
    assert bed.gpus_of(bed.wait_bound(namespace, "c"))["main"] in small
