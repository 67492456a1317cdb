"""The kernel ends a tenant, a sidecar and the enforcer for their memory: nobody else ends, and enforcement goes on."""

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.site import SYSTEM, Site, restarts
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
TAKE = "x = bytearray(1 << 30)"
"""More memory than any of these containers may have."""


@pytest.fixture(scope="module")
def namespace(site: Site, vm: VmNode) -> str:
    name = site.namespace("pressed", **{contract.GRACE_PERIOD: "2s"})
    neighbour = pods.pod("neighbour", "hold", "1Gi")
    site.run(name, neighbour)
    return name


def last_end(pod: pods.Object, container: str) -> str:
    """Why a container's last run ended, as the kubelet has it."""
    status = pod["status"]
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    (mine,) = (each for each in every if each["name"] == container)
    return str(((mine.get("lastState") or {}).get("terminated") or {}).get("reason", ""))


def in_container(site: Site, namespace: str, pod: str, container: str) -> None:
    """Take too much memory in a container. The kernel ends all of it, the command's own connection included."""
    line = f"kubectl -n {namespace} exec {pod} -c {container} -- python -c '{TAKE}'"
    site.shell(line, seconds=60, check=False)


def test_a_tenant_that_the_kernel_ends_is_none_of_ours(site: Site, namespace: str) -> None:
    pod = pods.pod("hungry", "hold", "1Gi")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "96Mi"}}
    site.run(namespace, pod)
    in_container(site, namespace, "hungry", pods.MAIN)
    site.until("it was ended", lambda: restarts(site.bed.pod(namespace, "hungry")).get(pods.MAIN, 0) > 0, 90)
    assert last_end(site.bed.pod(namespace, "hungry"), pods.MAIN) == "OOMKilled"
    assert site.records(namespace, "hungry") == []
    assert set(restarts(site.running(namespace, "neighbour")).values()) == {0}
    site.delete(namespace, "hungry")


def test_a_sidecar_that_the_kernel_ends_comes_back_and_its_container_goes_on(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("watched", "hold", "1Gi"))
    in_container(site, namespace, "watched", contract.SIDECAR)
    site.until("it came back", lambda: restarts(site.bed.pod(namespace, "watched")).get(contract.SIDECAR, 0) > 0, 90)
    pod = site.running(namespace, "watched", 90)
    assert last_end(pod, contract.SIDECAR) == "OOMKilled"
    assert restarts(pod)[pods.MAIN] == 0
    assert site.records(namespace, "watched") == []
    site.delete(namespace, "watched")


def test_after_the_kernel_ended_the_enforcer_it_enforces_again(site: Site, namespace: str) -> None:
    enforcer = site.enforcer()["metadata"]["name"]
    in_container(site, SYSTEM, enforcer, "enforcer")
    site.until("the enforcer was ended", lambda: restarts(site.enforcer()).get("enforcer", 0) > 0, 90)
    assert last_end(site.enforcer(), "enforcer") == "OOMKilled"
    site.until("it is ready again", site.enforcer_ready, 120)
    site.run(namespace, pods.pod("greedy", *GREEDY), 120)
    site.until("greedy is killed", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0, 90)
    assert "ok:" in site.in_enforcer("gpu-share audit verify")
    assert set(restarts(site.running(namespace, "neighbour")).values()) == {0}
    assert site.records(namespace, "neighbour") == []
    site.delete(namespace, "greedy")
