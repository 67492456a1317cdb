"""What CI tries on a virtual node with cgroup v2, systemd and AppArmor: a share, a kill, its record, the deletion."""

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import KUBELET, Site, restarts
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
PROFILE = "cri-containerd.apparmor.d (enforce)"
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")


@pytest.fixture(scope="module")
def namespace(site: Site, vm: VmNode) -> str:
    return site.namespace("smoke", **{contract.GRACE_PERIOD: "2s"})


def cgroups_of(vm: VmNode, pod: Object) -> list[str]:
    """Control groups of a pod's containers, below the mount of cgroup v2; its sandbox has no profile."""
    status = pod["status"]
    every = [*status["initContainerStatuses"], *status["containerStatuses"]]
    names = [f"cri-containerd-{each['containerID'].rpartition('/')[2]}.scope" for each in every]
    uid = pod["metadata"]["uid"].replace("-", "_")
    found = vm.run("find", "/sys/fs/cgroup/kubepods.slice", "-type", "d", "-path", f"*{uid}*").split()
    return [each for each in found if each.rpartition("/")[2] in names]


def profiles(vm: VmNode, group: str) -> set[str]:
    """AppArmor profiles of a control group's processes; runc itself joins it for a moment, with another one."""
    script = f"for pid in $(cat {group}/cgroup.procs); do cat /proc/$pid/attr/current || :; done"
    return set(vm.run("sh", "-c", script).splitlines())


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
    assert site.environ(namespace, "modest")["CUDA_VISIBLE_DEVICES"] == site.uuid_of(modest)
    site.run(namespace, pods.pod("greedy", *GREEDY))
    groups = cgroups_of(vm, modest)
    assert len(groups) == 2, "the kubelet made kubepods.slice/…/cri-containerd-<id>.scope for each container"
    for group in groups:
        site.until(f"all of {group} is confined", lambda group=group: profiles(vm, group) == {PROFILE})  # type: ignore[misc] # bound now
    site.until("greedy is killed", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0, 90)
    records = site.records(namespace, "greedy")[:4]
    assert [each["kind"] for each in records] == ["GRACE_STARTED", "WARNED", "INTENT", "OUTCOME"]
    assert (records[3]["result"], records[3]["intent"]) == ("Killed", records[2]["seq"])
    assert set(restarts(site.running(namespace, "modest")).values()) == {0}
    assert "ok:" in site.in_enforcer("gpu-share audit verify")
    for name in ("modest", "greedy"):
        site.delete(namespace, name)
    site.until("nothing is left", lambda: site.leftovers() == [])
