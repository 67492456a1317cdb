"""Parts of the node and of the cluster go away and come back: running tenants do not notice, enforcement goes on."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import contract
from gpushare.cluster import path
from tests.realnode import pods
from tests.realnode.site import APPS_V1, SYSTEM, Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
RESTARTS = 20
KUBELET_PORT = 10250
POLLS = 2.0
"""Seconds: a look or two, and three samples that agree."""
API_AWAY = 60.0
AGENTS = path(APPS_V1, "daemonsets", "gpu-share-agent", SYSTEM)
NOWHERE = {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}}


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("steady", **{contract.GRACE_PERIOD: "5s"})
    site.run(name, pods.pod("steady", "hold", "1Gi"))
    warm = pods.pod("warmed", "hold", "1Gi", **{"memory.gpu-share.io/warm-up": "1Gi"})
    warm["spec"]["initContainers"] = [pods.container("hold", "512Mi", "--for", "1s", name="warm-up")]
    site.run(name, warm)
    yield name
    site.drop(name)


def untouched(site: Site, namespace: str) -> None:
    """Every tenant of the namespace runs, and none of its containers was ever started twice."""
    for name in ("steady", "warmed"):
        pod = site.running(namespace, name)
        assert set(restarts(pod).values()) == {0}, pod["status"]


@contextmanager
def no_agent(site: Site) -> Iterator[None]:
    """Take the agent off the node for a while."""
    old = site.cluster.get(AGENTS)["spec"]["template"]["spec"].get("nodeSelector")
    name = site.agent()["metadata"]["name"]
    site.cluster.patch(AGENTS, NOWHERE)
    site.until("the agent is gone", lambda: site.find_pod(SYSTEM, name) is None)
    try:
        yield
    finally:
        site.cluster.patch(AGENTS, {"spec": {"template": {"spec": {"nodeSelector": {"nowhere": None, **(old or {})}}}}})
        site.until("the agent is ready again", site.agent_ready, 90)


def kubelet_restarts(site: Site, times: int) -> None:
    for _ in range(times):
        site.node.stop_kubelet()
        site.node.start_kubelet()
        site.until("the kubelet answers", lambda: answers(site.node.address, KUBELET_PORT))


def answers(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as knocking:
        knocking.settimeout(1)
        return knocking.connect_ex((address, port)) == 0


def test_the_kubelet_restarted_with_the_agent_there(site: Site, namespace: str) -> None:
    kubelet_restarts(site, RESTARTS // 2)
    site.until("slices are offered again", lambda: contract.KIND_STATUS in site.devices())
    untouched(site, namespace)
    site.run(namespace, pods.pod("after-kubelet", "hold", "1Gi"))
    site.delete(namespace, "after-kubelet")


def test_the_kubelet_restarted_with_the_agent_away(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("leaving", "hold", "1Gi"))
    with no_agent(site):
        kubelet_restarts(site, RESTARTS // 2)
        untouched(site, namespace)
        site.remove(namespace, "leaving")
    came_back = time.monotonic()
    site.until("the deletion that waited is done", lambda: site.find_pod(namespace, "leaving") is None, 30)
    print(f"\na deletion that waited for the agent ended {time.monotonic() - came_back:.1f} s after its return")
    untouched(site, namespace)


def test_containerd_restarted(site: Site, namespace: str) -> None:
    site.node.restart_containerd()
    untouched(site, namespace)
    site.run(namespace, pods.pod("after-containerd", "hold", "1Gi"), 90)
    site.delete(namespace, "after-containerd")


def test_the_agent_deleted_while_a_tenant_is_over(site: Site, namespace: str) -> None:
    """The grace period is neither shortened nor stretched by more than the agent's absence takes to notice."""
    site.run(namespace, pods.pod("over", "hold", "1Gi", "--then", "6Gi", "--after", "1s", "--over-limit"))
    site.until("it is warned", lambda: "OverQuota" in site.events(namespace, "over"))
    name = site.agent()["metadata"]["name"]
    site.remove(SYSTEM, name, grace=1)
    gone = time.monotonic()
    site.until("the new agent is ready", site.agent_ready, 90)
    away = time.monotonic() - gone
    site.until("it is ended", lambda: restarts(site.bed.pod(namespace, "over")).get(pods.MAIN, 0) > 0)
    mine = [each for each in site.records() if each.get("pod", {}).get("name") == "over"]
    over = float(next(each for each in mine if each["kind"] == "INTENT")["overFor"].removesuffix("s"))
    print(f"\nthe agent was away for {away:.1f} s; the intent came after {over} s over quota (grace 5 s)")
    assert 5.0 <= over <= 5.0 + away + POLLS, mine
    site.delete(namespace, "over")
    untouched(site, namespace)


def test_the_webhook_deleted(site: Site, namespace: str) -> None:
    site.shell(f"kubectl -n {SYSTEM} delete pod -l app.kubernetes.io/name=gpu-share-webhook --wait=false")
    site.until("it is back", lambda: webhook_ready(site), 90)
    untouched(site, namespace)
    site.until("sharing pods can be created", lambda: site.create(namespace, pods.pod("after-webhook", "hold", "1Gi")))
    site.running(namespace, "after-webhook")
    site.delete(namespace, "after-webhook")


def webhook_ready(site: Site) -> bool:
    status = site.cluster.get(path(APPS_V1, "deployments", "gpu-share-webhook", SYSTEM))["status"]
    return bool(status.get("readyReplicas", 0) == status.get("replicas"))


def test_the_api_server_away_for_a_minute(site: Site, namespace: str) -> None:
    """A container known before is still held to its quota; nobody else is touched."""
    site.run(namespace, pods.pod("known", "hold", "1Gi", "--then", "6Gi", "--after", "15s", "--over-limit"))
    known = len(site.records())
    with site.no_api_server():
        away = time.monotonic()
        ended = ("known", "OUTCOME")
        while time.monotonic() - away < API_AWAY:
            time.sleep(1)
        mine = [(each["pod"]["name"], each["kind"]) for each in site.records()[known:] if "pod" in each]
        assert ended in mine, mine
    untouched(site, namespace)
    site.until("the node is ready", site.node.ready, 90)
    site.delete(namespace, "known", 120)
    site.run(namespace, pods.pod("after-api", "hold", "1Gi"), 90)
    site.delete(namespace, "after-api")


def test_a_tenant_that_backs_off_after_a_kill_survives_a_kubelet_restart(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("loop", "hold", "1Gi", "--then", "6Gi", "--after", "1s", "--over-limit"))
    site.until("it backs off", lambda: restarts(site.bed.pod(namespace, "loop")).get(pods.MAIN, 0) > 1, 120)
    kubelet_restarts(site, 1)
    before = restarts(site.bed.pod(namespace, "loop"))[pods.MAIN]
    site.until("it is started again", lambda: restarts(site.bed.pod(namespace, "loop"))[pods.MAIN] > before, 120)
    assert site.bed.pod(namespace, "loop")["status"]["phase"] == "Running"
    site.delete(namespace, "loop")
