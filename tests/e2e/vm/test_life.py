"""A share's life on a node as users have it, in this order: its limits, a kill, a resize, outages, upgrade and end."""

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e import test_resize as resizing
from tests.e2e import test_upgrade_and_uninstall as upgrading
from tests.e2e.absences import kubelet_restarts, no_enforcer
from tests.e2e.site import Site, restarts
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(2400)]
GREEDY = "gpu-share-tenant hold 1Gi --then 6Gi --after 4s --over-limit; sleep 600"
"""Its first process is a shell, which a kill of the GPU process alone leaves running."""


@pytest.fixture(scope="module")
def namespace(site: Site, vm: VmNode) -> str:
    """With a tenant that nothing of all this may restart."""
    name = site.namespace("life", **{contract.GRACE_PERIOD: "2s", contract.ON_EXCEED: "kill-container"})
    site.run(name, pods.pod("steady", "hold", "1Gi", **{contract.COMPUTE: "25%"}))
    return name


def untouched(site: Site, namespace: str) -> None:
    assert set(restarts(site.running(namespace, "steady")).values()) == {0}


def test_its_limits_are_in_the_process_and_its_use_is_attributed(site: Site, namespace: str) -> None:
    env = site.environ(namespace, "steady")
    assert env["CUDA_VISIBLE_DEVICES"] == site.uuid_of(site.bed.pod(namespace, "steady"))
    assert (env[contract.MPS_MEMORY_LIMIT], env[contract.MPS_THREAD_PERCENTAGE]) == ("0=2048M", "25")
    site.until("its use is seen", lambda: resizing.quota(site, namespace, "steady")[:2] == (2048, 1024))


def test_a_kill_of_the_container_ends_its_first_process_too(site: Site, namespace: str) -> None:
    pod = pods.pod("greedy")
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", GREEDY]
    site.run(namespace, pod)
    assert site.record(namespace, "greedy", "OUTCOME")["result"] == "Killed"
    site.until("it was started again", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0, 90)
    site.until("its sidecar says why", lambda: "6144 MiB" in site.logs(namespace, "greedy"))
    site.delete(namespace, "greedy")
    untouched(site, namespace)


def test_a_lowered_quota_is_the_limit_of_the_next_start(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("elastic", "hold", "1Gi"))
    assert "2Gi -> 1536Mi" in resizing.resize(site, f"{namespace}/elastic", "main", "1536Mi")
    site.until("the quota holds", lambda: resizing.quota(site, namespace, "elastic")[0] == 1536)
    resizing.started_again(site, namespace, "elastic")
    assert resizing.limits(site, namespace, "elastic") == ("0=1536M", "1536")


def test_kubelet_and_containerd_restart_and_the_next_pod_starts(site: Site, namespace: str) -> None:
    site.node.restart_containerd()
    kubelet_restarts(site, 1)
    site.run(namespace, pods.pod("after", "hold", "512Mi", memory="1Gi"))
    site.delete(namespace, "after")
    untouched(site, namespace)


def test_a_pod_that_is_deleted_while_the_enforcer_is_away_goes_when_it_is_back(site: Site, namespace: str) -> None:
    with no_enforcer(site):
        site.remove(namespace, "elastic")
    site.until("it is gone", lambda: site.find_pod(namespace, "elastic") is None)
    site.until("nothing of it is left", lambda: site.leftovers() == [])
    untouched(site, namespace)


def test_an_upgrade_restarts_no_tenant(site: Site, namespace: str) -> None:
    upgrading.test_an_upgrade_to_another_image_restarts_no_tenant(site)
    untouched(site, namespace)


def test_after_uninstalling_nothing_is_left(site: Site, namespace: str) -> None:
    site.delete(namespace, "steady")
    upgrading.test_after_uninstalling_nothing_is_left_and_namespaces_create_pods(site)
