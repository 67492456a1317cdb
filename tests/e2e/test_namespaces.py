"""Namespaces with rules of their own: Pod Security, quotas, limit ranges."""

import pytest

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.e2e import pods
from tests.e2e.site import Site

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
COUNTED = f"{contract.DEVICE_CLASS}{contract.DEVICE_QUOTA}"
TOTAL = f"{contract.MEMORY_COUNT_CLASS}{contract.DEVICE_QUOTA}"
SMALL = {"cpu": "50m", "memory": "64Mi"}


@pytest.fixture
def namespace(site: Site) -> str:
    return site.namespace("ruled", {"pod-security.kubernetes.io/enforce": "restricted"})


def test_a_tenant_runs_under_pod_security_restricted(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("restricted", "hold", "1Gi"))


def test_a_guaranteed_pod_stays_guaranteed(site: Site, namespace: str) -> None:
    body = pods.pod("guaranteed", "hold", "1Gi")
    body["spec"]["containers"][0]["resources"] = {"requests": dict(SMALL), "limits": dict(SMALL)}
    assert site.run(namespace, body)["status"]["qosClass"] == "Guaranteed"


def test_a_quota_on_shares_counts_sharing_containers(site: Site, namespace: str) -> None:
    quota = {"metadata": {"name": "shares"}, "spec": {"hard": {COUNTED: "2"}}}
    site.cluster.create(path(CORE_V1, "resourcequotas", namespace=namespace), quota)
    site.until("the quota is in force", lambda: used(site, namespace) == "0")
    for name in ("one", "two"):
        site.run(namespace, pods.pod(name, "hold", "512Mi", memory="1Gi"))
    assert used(site, namespace) == "2"
    site.create(namespace, pods.pod("three", "hold", "512Mi", memory="1Gi"))
    site.until(
        "the third has an Event", lambda: any("quota" in note for note in site.events(namespace, "three").values())
    )
    assert not site.bed.pod(namespace, "three")["spec"].get("nodeName")
    site.delete(namespace, "one")
    site.running(namespace, "three", 120)


def used(site: Site, namespace: str, key: str = COUNTED) -> str:
    quota = site.cluster.get(path(CORE_V1, "resourcequotas", "shares", namespace))
    return str(quota.get("status", {}).get("used", {}).get(key, "unknown"))


def test_a_total_in_mib_counts_what_runs_on_the_node(site: Site) -> None:
    namespace = site.namespace("total", **{contract.COUNT_AMOUNTS: "true"})
    quota = {"metadata": {"name": "shares"}, "spec": {"hard": {TOTAL: "3072"}}}
    site.cluster.create(path(CORE_V1, "resourcequotas", namespace=namespace), quota)
    site.until("the quota is in force", lambda: used(site, namespace, TOTAL) == "0")
    site.run(namespace, pods.pod("first", "hold", "512Mi", memory="2Gi"))
    assert used(site, namespace, TOTAL) == "2048"
    assert "512/2048" in site.exec(namespace, "first", "gpu-share", "status", container=contract.SIDECAR)
    site.create(namespace, pods.pod("second", "hold", "512Mi", memory="2Gi"))
    site.until("it waits", lambda: any("quota" in note for note in site.events(namespace, "second").values()))
    site.delete(namespace, "first")
    site.running(namespace, "second", 120)
    site.drop(namespace)


def test_a_limit_range_does_not_keep_tenants_out(site: Site, namespace: str) -> None:
    limit = {"type": "Container", "default": {"memory": "128Mi"}, "defaultRequest": SMALL, "max": {"memory": "256Mi"}}
    site.cluster.create(
        path(CORE_V1, "limitranges", namespace=namespace), {"metadata": {"name": "small"}, "spec": {"limits": [limit]}}
    )
    site.run(namespace, pods.pod("limited", "hold", "1Gi"))


def test_the_view_role_can_explain_a_pod(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("asked", "hold", "1Gi"))
    output = site.shell(f"KUBECONFIG={site.viewer(namespace)} gpu-share explain {namespace}/asked")
    assert "2Gi" in output


def test_a_share_above_the_ceiling_is_refused(site: Site) -> None:
    namespace = site.namespace("capped", **{contract.MAX_MEMORY: "1Gi"})
    with pytest.raises(ClusterError, match="1Gi"):
        site.create(namespace, pods.pod("big", "hold", "1Gi"))
