"""The dashboard's queries, answered by a Prometheus with the chart's rules that scrapes what its monitor names."""

import json
import time
from typing import Any, Final

import yaml

from tests.e2e.site import SYSTEM
from tests.gpu.parcel.layout import BINARIES, NODE, ROOT
from tests.gpu.parcel.scene import Scene
from tests.support.prometheus import Prometheus, Target, concrete, job, running

CHART: Final = ROOT / "deploy/helm/gpu-share"
DASHBOARD: Final = CHART / "dashboards/gpu-share.json"
TARGETS: Final = {"gpu-share-enforcer": 9403, "gpu-share-webhook": 9402}
"""Services of the chart, and the port of each on the node's network."""
EMPTY_UNDER_MPS: Final = frozenset({"Utilization, highest 20", "Last kills"})
"""Panels that may have no series there: the driver counts the kernels of all clients for the MPS server, and nothing
was killed."""
BORROWED: Final = "gpu_share_container_memory_borrowed_bytes"
"""Has no series: nobody may borrow here."""
USED: Final = "GPU memory used by namespace"
RATES: Final = "20s"
SECONDS: Final = 20.0


def ask(scene: Scene, namespace: str) -> tuple[float, list[str]]:
    """Return the MiB that the dashboard shows for a namespace, and the titles of the panels without a series."""
    folder = scene.node.home / "prometheus"
    folder.mkdir(exist_ok=True)
    (endpoint, *_), rules = _chart(scene, "ServiceMonitor")["endpoints"], _chart(scene, "PrometheusRule")
    jobs = [job("services", endpoint, [_target(name, port) for name, port in TARGETS.items()])]
    with running(scene.node.parcel / BINARIES / "prometheus", folder, jobs, rules) as prometheus:
        return _asked(prometheus, namespace)


def _asked(prometheus: Prometheus, namespace: str) -> tuple[float, list[str]]:
    queries = [
        (panel["title"], concrete(target["expr"], RATES, namespace))
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel.get("targets", ())
        if BORROWED not in target["expr"]
    ]
    left, until = queries, time.monotonic() + SECONDS
    while {title for title, _ in left} - EMPTY_UNDER_MPS and time.monotonic() < until:
        time.sleep(1)
        left = [(title, query) for title, query in left if not prometheus.answers(query)]
    used = sum(_value(prometheus, query) for title, query in queries if title == USED)
    return used / 2**20, sorted({title for title, _ in left})


def _value(prometheus: Prometheus, query: str) -> float:
    found = prometheus.get("query", query=query)["result"]
    return sum(float(each["value"][1]) for each in found)


def _chart(scene: Scene, kind: str) -> dict[str, Any]:
    """What the chart has for Prometheus' operator."""
    options = "--set monitoring.serviceMonitor.enabled=true,monitoring.prometheusRule.enabled=true"
    text = scene.site.shell(f"helm template gpu-share {CHART} --namespace {SYSTEM} {options}")
    (found,) = [each for each in yaml.safe_load_all(text) if each and each["kind"] == kind]
    for group in found["spec"].get("groups", ()):
        group.pop("interval", None)  # a minute would be too long here
    return dict(found["spec"])


def _target(name: str, port: int) -> Target:
    own = {"namespace": SYSTEM, "service": name, "job": name, "pod": name, "container": name}
    return Target(f"127.0.0.1:{port}", own | {"__meta_kubernetes_pod_node_name": NODE})
