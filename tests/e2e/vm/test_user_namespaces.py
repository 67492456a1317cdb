"""Pods with a user namespace of their own: its control group tells whose a process is, whatever users there are."""

import pytest

from gpushare import contract
from gpushare.kube_client import CORE_V1
from tests.e2e import pods
from tests.e2e.site import Site, restarts
from tests.testbed.vm.node import VmNode
from webhook.mutation.user_namespaces import MAPPABLE

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
UPGRADE = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values --wait --set "
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")


@pytest.fixture(scope="module")
def namespace(site: Site, vm: VmNode) -> str:
    return site.namespace("mapped", **{contract.GRACE_PERIOD: "2s"})


def mapped(name: str, *program: str) -> pods.Object:
    pod = pods.pod(name, *program)
    pod["spec"]["hostUsers"] = False
    return pod


def test_a_share_in_a_user_namespace_is_mounted_counted_and_ended(site: Site, vm: VmNode, namespace: str) -> None:
    site.run(namespace, mapped("modest", "hold", "1Gi"))
    users = site.exec(namespace, "modest", "cat", "/proc/self/uid_map").split()
    assert users[1] != "0", "root of the pod is another user of the node"
    environ = site.environ(namespace, "modest")
    assert environ[contract.MEMORY_MIB] == "2048"
    assert environ["CUDA_VISIBLE_DEVICES"] == site.uuid_of(site.bed.pod(namespace, "modest"))
    site.run(namespace, mapped("greedy", *GREEDY))
    site.until("greedy is killed", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0, 90)
    assert [each["kind"] for each in site.records(namespace, "greedy")][:4] == [
        "GRACE_STARTED",
        "WARNED",
        "INTENT",
        "OUTCOME",
    ]
    assert set(restarts(site.running(namespace, "modest")).values()) == {0}
    assert site.records(namespace, "modest") == []


def test_root_of_an_isolated_tenant_is_nobody_on_the_node(site: Site, vm: VmNode, namespace: str) -> None:
    """``webhook.rootTenants: isolate``, on a pod that says nothing of user namespaces."""
    site.shell(f"{UPGRADE}webhook.rootTenants=isolate")
    pod = pods.pod("rooted", "hold", "1Gi")
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0}
    try:
        made = site.run(namespace, pod)
    finally:
        site.shell(f"{UPGRADE}webhook.rootTenants=allow")
    assert made["spec"]["hostUsers"] is False
    assert site.exec(namespace, "rooted", "id", "-u").strip() == "0"
    assert site.exec(namespace, "rooted", "cat", "/proc/self/uid_map").split()[1] != "0"
    assert site.environ(namespace, "rooted")[contract.MEMORY_MIB] == "2048", "and its share works"


def test_volumes_that_the_webhook_takes_for_mappable_are(site: Site, vm: VmNode, namespace: str) -> None:
    """What ``webhook.rootTenants: isolate`` counts on."""
    site.apply(namespace, CORE_V1, "configmaps", {"metadata": {"name": "c"}, "data": {"a": "b"}})
    site.apply(namespace, CORE_V1, "secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    sources: dict[str, pods.Object] = {
        "configMap": {"name": "c"},
        "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}]},
        "emptyDir": {},
        "projected": {"sources": [{"configMap": {"name": "c"}}]},
        "secret": {"secretName": "s"},
    }
    assert sources.keys() == MAPPABLE
    pod = mapped("mounted", "hold", "1Gi")
    names = {kind: kind.lower() for kind in sources}
    pod["spec"]["volumes"] = [{"name": names[kind], kind: source} for kind, source in sources.items()]
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in names.values()]
    pod["spec"]["containers"][0]["volumeMounts"] = mounts
    site.run(namespace, pod)
    for kind, name in names.items():
        if kind != "emptyDir":
            assert site.exec(namespace, "mounted", "cat", f"/mnt/{name}/a") in {"b", "mounted"}
    site.exec(namespace, "mounted", "touch", "/mnt/emptydir/a")
    assert site.exec(namespace, "mounted", "stat", "-c", "%u", "/mnt/emptydir").strip() == "0"
