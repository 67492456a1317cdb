"""The node reboots with shares running, in order and by its reset button, and loses power while it kills."""

from collections.abc import Callable, Iterator

import pytest

from gpushare import contract
from gpushare.kube_client import RESOURCE_V1, path
from tests.e2e import pods
from tests.e2e.site import Site, ready
from tests.support.extent import figure, trials
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(3600)]
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
REBOOTS = trials(1, 25)
CUTS = trials(1, 5)
AGAIN = 300.0
"""Seconds from power-on until the node's pods run again: without KVM everything takes ten times as long."""


@pytest.fixture(scope="module")
def namespace(site: Site, vm: VmNode) -> Iterator[str]:
    name = site.namespace("rebooted", **{contract.GRACE_PERIOD: "2s"})
    for number in range(2):
        site.run(name, pods.pod(f"steady-{number}", "hold", "1Gi"))
    yield name
    site.drop(name)


def allocated(site: Site, namespace: str) -> dict[str, list[str]]:
    """GPUs by claim, as the scheduler chose them."""
    claims = site.cluster.list(path(RESOURCE_V1, "resourceclaims", namespace=namespace))[0]
    return {
        claim["metadata"]["name"]: [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]]
        for claim in claims
    }


def back(site: Site, vm: VmNode, namespace: str, boot: str) -> None:
    """Wait until the shares run again in this boot, and check that each has the GPU of its claim."""
    vm.wait_ready()
    site.until("the enforcer is ready", site.agent_ready, AGAIN)
    names = [each["metadata"]["name"] for each in site.pods(namespace) if "steady" in each["metadata"]["name"]]
    site.until("the shares run again", lambda: all(ready(site.bed.pod(namespace, name)) for name in names), AGAIN)
    assert vm.boot_id() != boot
    for name in names:
        pod = site.bed.pod(namespace, name)
        assert site.environ(namespace, name)["CUDA_VISIBLE_DEVICES"] == site.uuid_of(pod)
    assert [each["metadata"]["name"] for each in site.pods(namespace) if "deletionTimestamp" in each["metadata"]] == []


@pytest.mark.parametrize("how", ["in order", "reset"])
def test_shares_come_back_on_the_gpu_of_their_claim(site: Site, vm: VmNode, namespace: str, how: str) -> None:
    press: Callable[[], None] = vm.reboot if how == "in order" else vm.reset
    for _ in range(REBOOTS):
        boot, before = vm.boot_id(), allocated(site, namespace)
        press()
        back(site, vm, namespace, boot)
        assert allocated(site, namespace) == before
    figure("40", f"reboots ({how}) after which a pod was stuck or had another GPU", f"0 in {REBOOTS}")


def test_no_record_is_lost_when_power_fails_during_a_kill(site: Site, vm: VmNode, namespace: str) -> None:
    for number in range(CUTS):
        name = f"greedy-{number}"
        site.run(namespace, pods.pod(name, *GREEDY))
        site.record(namespace, name, "INTENT")
        acknowledged = site.records(namespace, name)
        boot = vm.boot_id()
        vm.cut()
        vm.power_on()
        back(site, vm, namespace, boot)
        kept = site.records(namespace, name)
        assert kept[: len(acknowledged)] == acknowledged, "what was read from the log is still there"
        assert "ok:" in site.in_agent("gpu-share audit verify")
        site.delete(namespace, name, AGAIN)
    figure("40", "power cuts during a kill after which a record was lost or the chain did not verify", f"0 in {CUTS}")
