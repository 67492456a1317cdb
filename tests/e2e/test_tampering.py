"""What a tenant writes besides its share changes neither GPU nor limits, at the start or at a restart."""

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from tests.e2e import pods
from tests.e2e.site import Site, restarts
from tests.testbed.cluster.controlplane import TENANT

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
FORGED = {
    contract.CUDA_VISIBLE_DEVICES: "0,1",
    contract.NVIDIA_VISIBLE_DEVICES: "all",
    contract.MPS_MEMORY_LIMIT: "0=99999M",
    contract.MEMORY_MIB: "99999",
}


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("tampering")


def test_variables_set_by_the_tenant_are_not_those_of_the_process(site: Site, namespace: str) -> None:
    body = pods.pod("forger", "hold", "1Gi")
    body["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in FORGED.items()]
    pod = site.run(namespace, body)
    env = site.environ(namespace, "forger")
    right = {
        contract.CUDA_VISIBLE_DEVICES: site.uuid_of(pod),
        contract.NVIDIA_VISIBLE_DEVICES: site.uuid_of(pod),
        contract.MPS_MEMORY_LIMIT: "0=2048M",
        contract.MEMORY_MIB: "2048",
    }
    assert {name: env[name] for name in right} == right


def test_annotations_changed_later_change_nothing_at_a_restart(site: Site, namespace: str) -> None:
    pod = site.run(namespace, pods.pod("patient", "hold", "1Gi"))
    where = path(CORE_V1, "pods", "patient", namespace)
    change = {"metadata": {"annotations": {contract.MEMORY: "9Gi"}}}
    with pytest.raises(ClusterError, match=r"gpu-share\.io annotations are read when the pod is created"):
        site.bed.plane.cluster(TENANT).patch(where, change)
    site.end_main(namespace, "patient")
    site.until("its container is started again", lambda: restarts(site.bed.pod(namespace, "patient"))[pods.MAIN] == 1)
    site.running(namespace, "patient")
    env = site.environ(namespace, "patient")
    assert (env[contract.CUDA_VISIBLE_DEVICES], env[contract.MPS_MEMORY_LIMIT]) == (site.uuid_of(pod), "0=2048M")


def test_a_forged_template_is_refused(site: Site, namespace: str) -> None:
    spec = {
        "spec": {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": contract.DEVICE_CLASS}}]}}
    }
    body = {"metadata": {"name": f"{contract.TEMPLATE_PREFIX}0123456789abcdef"}, "spec": spec}
    with pytest.raises(ClusterError, match="template"):
        site.apply(namespace, RESOURCE_V1, "resourceclaimtemplates", body)


def test_a_claim_that_holds_less_than_the_annotations_ask_starts_nothing(site: Site, namespace: str) -> None:
    exactly = {"deviceClassName": contract.DEVICE_CLASS, "capacity": {"requests": {"memory": "1Gi"}}}
    claim = {"metadata": {"name": "small"}, "spec": {"devices": {"requests": [{"name": "main", "exactly": exactly}]}}}
    site.apply(namespace, RESOURCE_V1, "resourceclaims", claim)
    body = pods.pod("liar", "hold", "1Gi", memory="8Gi")
    body["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": "small"}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine", "request": "main"}]}
    site.create(namespace, body)
    site.until("an Event says why", lambda: "small reserves 1Gi" in " ".join(site.events(namespace, "liar").values()))
    assert site.bed.pod(namespace, "liar")["status"]["phase"] == "Pending"


def test_a_forged_claim_status_is_refused(site: Site, namespace: str) -> None:
    (claim,) = [each for each in site.bed.list("resourceclaims", namespace) if "patient" in each["metadata"]["name"]]
    where = f"{path(RESOURCE_V1, 'resourceclaims', claim['metadata']['name'], namespace)}/status"
    with pytest.raises(ClusterError, match=r"forbidden|denied"):
        site.bed.plane.cluster(TENANT).patch(where, {"status": {"allocation": None}})
