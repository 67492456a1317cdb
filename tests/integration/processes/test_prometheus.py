"""A real Prometheus scrapes webhook, enforcer and sidecar as the chart has it: alerts and dashboard find series."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.processes.containers import wait_for
from tests.integration.processes.enforcing import Node
from tests.integration.processes.monitored import SYSTEM, chart, panels, pod, scraped, service, sidecar
from tests.support import helm, reviews
from tests.support.prometheus import Prometheus, concrete
from tests.support.webhook import serving
from tests.testbed.cluster.ports import free_ports

pytestmark = [pytest.mark.node, pytest.mark.controlplane]  # helm and prometheus, which make integration brings

SIDECAR, TENANT = "127.9.4.3", "127.9.4.4"
"""Addresses of pods: the chart names the port."""
FOREIGN: Final = "kube_"
"""Metrics of kube-state-metrics, of which the alerts make use where it is there."""
STATES: Final = frozenset({"state", "backend"})
"""Labels of which an alert names a value that no healthy share has."""
FORGED: Final = (
    b"gpu_share_breaker_open 1\n"
    b'gpu_share_container_memory_used_bytes{namespace="victim",pod="db-0",container="own",node="elsewhere",'
    b'job="gpu-share-enforcer",gpu="GPU-0"} 1e12\n'
)


class _Tenant(BaseHTTPRequestHandler):
    """A tenant's own server on the sidecar's port."""

    def log_message(self, *_: object) -> None:
        """Keep the test's output quiet."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(FORGED)


@contextmanager
def tenant() -> Iterator[None]:
    with ThreadingHTTPServer((TENANT, 9403), _Tenant) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@dataclass(frozen=True)
class World:
    """Prometheus, and the pod that has a share."""

    prometheus: Prometheus
    pod: str
    namespace: str = "asr"

    def answers(self, query: str) -> bool:
        return self.prometheus.answers(query)


def enforce(folder: Path, stack: ExitStack, port: int) -> str:
    """Start an enforcer with one share, which may borrow, and the share's sidecar; returns the pod's name."""
    node, run = Node(folder, stack), folder / "run"
    stack.callback(node.end)
    container = node.container()
    process = container.tenant(node.sim, "--mib", "1000")
    quota = container.quota(node.gpu, 4096, reserved_mib=4096, limit_mib=8192, clients=1)
    sidecar(stack, run / "status" / container.pod_uid, SIDECAR)
    node.allow(quota)
    # A container's utilization is known in this mode alone.
    node.start(
        "--run", str(run), f"--metrics=127.0.0.1:{port}", "--limit-verification-seconds=1", "--mode=time-slicing"
    )
    node.sim.run_kernel(process.pid, node.gpu)
    return quota.pod


@pytest.fixture(name="world", scope="module")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    helm.need()
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        (port,) = free_ports(1)
        sharing = enforce(folder, stack, port)
        stack.enter_context(tenant())
        (folder / "webhook").mkdir()
        webhook = stack.enter_context(serving(folder / "webhook"))
        webhook.post(reviews.encoded())
        services = [service("gpu-share-enforcer", port), service("gpu-share-webhook", webhook.admin_port)]
        sidecars = [pod(SIDECAR, sharing), pod(TENANT, "hostile-0")]
        found = World(stack.enter_context(scraped(folder, services, sidecars)), sharing)
        wait_for(lambda: found.answers("count(up == 1) == 4"), 60)
        wait_for(lambda: found.answers("gpu_share_container_utilization_ratio and on () gpu_share_audit_intact"), 60)
        yield found


AFTER_A_KILL: Final = frozenset({"Last kills"})
"""Panels that have series once something was killed; nothing is here."""


def alerts() -> list[str]:
    return [rule["expr"] for rule in chart("PrometheusRule")["spec"]["groups"][0]["rules"]]


def dashboard() -> list[str]:
    return [
        concrete(target["expr"], "1m")
        for panel in panels()
        for target in panel.get("targets", ())
        if panel["title"] not in AFTER_A_KILL
    ]


def selector(found: dict[str, Any]) -> str:
    """Write a selector as a query, without the states that only something broken has."""
    rest = [each for each in found["matchers"] if each["name"] not in STATES]
    return "{" + ",".join(f"{each['name']}{each['type']}{json.dumps(each['value'])}" for each in rest) + "}"


def test_every_series_that_an_alert_selects_is_there(world: World) -> None:
    selected = {
        selector(each)
        for query in alerts()
        for each in world.prometheus.selectors(query)
        if not each["name"].startswith(FOREIGN)
    }
    assert len(selected) > 20
    wait_for(lambda: all(map(world.answers, selected)), 30)


def test_every_query_of_the_dashboard_returns_series(world: World) -> None:
    queries = dashboard()
    assert len(queries) > 30
    missing = list(queries)

    def none_missing() -> bool:
        missing[:] = [each for each in missing if not world.answers(each)]
        return not missing

    try:
        wait_for(none_missing, 30)
    except AssertionError:
        pytest.fail(f"no series: {missing}")


def test_the_rules_are_loaded_and_nothing_fires_at_rest(world: World) -> None:
    groups = {each["name"]: each["rules"] for each in world.prometheus.get("rules")["groups"]}
    assert {rule["health"] for rules in groups.values() for rule in rules} <= {"ok", "unknown"}
    assert [len(each) for each in groups.values()] == [len(alerts()), 4]
    critical = 'ALERTS{alertstate="firing", severity="critical"}'
    assert world.prometheus.series(critical) == []


def test_series_of_a_share_have_the_tenants_namespace_and_pod_and_the_node(world: World) -> None:
    where = {"namespace": "asr", "pod": world.pod, "container": "model", "node": "gpu-7"}
    for name in ("used", "peak", "quota"):
        query = f'gpu_share_container_memory_{name}_bytes{{pod="{world.pod}"}}'
        wait_for(lambda query=query: len(world.prometheus.series(query)) == 2, 30)  # type: ignore[misc] # bound now
        found = world.prometheus.series(query)
        assert {each["job"] for each in found} == {"gpu-share-enforcer", f"{SYSTEM}/gpu-share-sidecar"}
        assert [each.items() >= where.items() for each in found] == [True, True]
    both = world.prometheus.series("gpu_share_gpu_info")
    assert [(each["node"], each["index"]) for each in both] == [("gpu-7", "0")]
    assert not world.answers('{__name__=~"gpu_share_.+", exported_namespace!=""}')


def test_a_tenant_passes_for_no_other_pod_and_no_enforcer(world: World) -> None:
    wait_for(lambda: world.answers('gpu_share_container_memory_used_bytes{pod="hostile-0"}'), 30)
    found = world.prometheus.series("gpu_share_container_memory_used_bytes > 1e11")
    assert [(each["namespace"], each["pod"], each["node"], each["job"]) for each in found] == [
        ("asr", "hostile-0", "gpu-7", f"{SYSTEM}/gpu-share-sidecar")
    ]
    assert {each["job"] for each in world.prometheus.series("gpu_share_breaker_open")} == {"gpu-share-enforcer"}
