"""What a kernel with cgroup v2, systemd and AppArmor shows, and the machine of the other tests cannot."""

from collections.abc import Iterator

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.site import KUBELET, Site, restarts
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
USER_NAMESPACES = "own-users"


@pytest.fixture(scope="module")
def namespace(site: Site, vm: VmNode) -> Iterator[str]:
    name = site.namespace("as-users", **{contract.GRACE_PERIOD: "2s"})
    yield name
    site.drop(name)


def cgroup_of(vm: VmNode, uid: str) -> list[str]:
    """Control groups of a pod's containers, below the mount of cgroup v2."""
    found = vm.run(
        "sh", "-c", f"find /sys/fs/cgroup/kubepods.slice -type d -path '*{uid.replace('-', '_')}*' -name 'cri-*'"
    )
    return found.split()


def test_the_node_is_cgroup_v2_with_systemd_and_kubelet_defaults(vm: VmNode) -> None:
    assert vm.run("stat", "--file-system", "--format=%T", "/sys/fs/cgroup").strip() == "cgroup2fs"
    assert vm.run("cat", "/sys/module/apparmor/parameters/enabled").strip() == "Y"
    config = vm.run("cat", f"{KUBELET}/config.yaml")
    assert "cgroupDriver: systemd" in config
    assert "failCgroupV1" not in config


def test_a_tenant_under_apparmor_in_a_systemd_slice_is_killed_and_its_neighbour_is_not(
    site: Site, vm: VmNode, namespace: str
) -> None:
    modest = site.run(namespace, pods.pod("modest", "hold", "1Gi"))
    site.run(namespace, pods.pod("greedy", *GREEDY))
    groups = cgroup_of(vm, modest["metadata"]["uid"])
    assert groups, "the kubelet made kubepods.slice/…/cri-containerd-<id>.scope"
    assert all(group.endswith(".scope") for group in groups)
    profiles = {
        vm.run("cat", f"/proc/{pid}/attr/current").strip()
        for group in groups
        for pid in vm.run("cat", f"{group}/cgroup.procs").split()
    }
    assert profiles == {"cri-containerd.apparmor.d (enforce)"}
    site.until("greedy is killed", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0, 90)
    assert [each["kind"] for each in site.records(namespace, "greedy")][:4] == ["ARMED", "WARNED", "INTENT", "OUTCOME"]
    assert set(restarts(site.running(namespace, "modest")).values()) == {0}
    assert "ok:" in site.in_agent("gpu-share audit verify")
    site.delete(namespace, "greedy")


def test_a_tenant_in_a_user_namespace_has_its_share_and_is_killed(site: Site, vm: VmNode, namespace: str) -> None:
    site.shell(
        f"kubectl apply -f - <<'EOF'\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\n"
        f"metadata: {{name: {USER_NAMESPACES}}}\nhandler: crun\nEOF"
    )
    body = pods.pod("unmapped", *GREEDY)
    body["spec"] |= {"hostUsers": False, "runtimeClassName": USER_NAMESPACES}
    body["spec"]["restartPolicy"] = "Never"
    pod = site.run(namespace, body, 120)
    (outer, *_) = (
        vm.run("cat", f"/proc/{pid}/uid_map").split()[1]
        for group in cgroup_of(vm, pod["metadata"]["uid"])
        for pid in vm.run("cat", f"{group}/cgroup.procs").split()
    )
    assert int(outer) >= 65536, "root of the pod is nobody on the node"
    record = site.record(namespace, "unmapped", "OUTCOME")
    assert record["container"]["name"] == pods.MAIN if "container" in record else True
    site.delete(namespace, "unmapped")
