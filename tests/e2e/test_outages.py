"""Parts of the node and of the cluster go away and come back: running tenants do not notice, enforcement goes on."""

import time

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.site import Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
API_AWAY = 60.0


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    name = site.namespace("steady", **{contract.GRACE_PERIOD: "5s"})
    site.run(name, pods.pod("steady", "hold", "1Gi"))
    warm = pods.pod("warmed", "hold", "1Gi", **{"memory.gpu-share.io/warm-up": "1Gi"})
    warm["spec"]["initContainers"] = [pods.container("hold", "512Mi", "--for", "1s", name="warm-up")]
    site.run(name, warm)
    return name


def untouched(site: Site, namespace: str) -> None:
    """Every tenant of the namespace runs, and none of its containers was ever started twice."""
    for name in ("steady", "warmed"):
        pod = site.running(namespace, name)
        assert set(restarts(pod).values()) == {0}, pod["status"]


def seen(site: Site, namespace: str, name: str) -> bool:
    """Whether the enforcer has seen what a pod holds."""
    rows = [row for row in site.status()["containers"] if (row["namespace"], row["pod"]) == (namespace, name)]
    return any(row["usedMib"] for row in rows)


def test_the_api_server_away_for_a_minute(site: Site, namespace: str) -> None:
    """A container known before is still held to its quota; nobody else is touched."""
    site.run(namespace, pods.pod("known", "hold", "1Gi", "--then", "6Gi", "--after", "15s", "--over-limit"))
    site.until("the enforcer knows it", lambda: seen(site, namespace, "known"))
    with site.no_api_server():
        away = time.monotonic()
        while time.monotonic() - away < API_AWAY:
            time.sleep(1)
        mine = [each["kind"] for each in site.records(namespace, "known")]
        assert "OUTCOME" in mine, mine
    untouched(site, namespace)
    site.until("the node is ready", site.node.ready, 90)
    site.delete(namespace, "known", 120)
    site.run(namespace, pods.pod("after-api", "hold", "1Gi"), 90)
    site.delete(namespace, "after-api")
