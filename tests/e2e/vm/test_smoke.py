"""What CI tries on a virtual node: a share, a kill, its record, and that nothing is left behind."""

from typing import Final

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.site import Site
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1800)]
GREEDY: Final = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")


def test_a_share_a_kill_its_record_and_the_end(site: Site, vm: VmNode) -> None:
    namespace = site.namespace("smoke", **{contract.GRACE_PERIOD: "2s"})
    steady = site.run(namespace, pods.pod("steady", "hold", "1Gi"))
    assert site.environ(namespace, "steady")["CUDA_VISIBLE_DEVICES"] == site.uuid_of(steady)
    site.run(namespace, pods.pod("greedy", *GREEDY))
    assert site.record(namespace, "greedy", "OUTCOME")["result"] == "Killed"
    assert site.record(namespace, "greedy", "INTENT")["seq"] == site.record(namespace, "greedy", "OUTCOME")["intent"]
    assert "ok:" in site.in_enforcer("gpu-share audit verify")
    for name in ("steady", "greedy"):
        site.delete(namespace, name)
    site.until("nothing is left", lambda: site.leftovers() == [])
    assert vm.run("stat", "-fc", "%T", "/sys/fs/cgroup").strip() == "cgroup2fs"
