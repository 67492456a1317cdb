"""Webhook, enforcer and sidecars as the chart has a Prometheus scrape them, and the queries of its dashboard."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.integration.processes.containers import PROJECT
from tests.support import helm
from tests.support.prometheus import SECONDS, Prometheus, Target, job, running
from tests.support.promtool import need

SYSTEM: Final = "gpu-share-system"
OPTIONS: Final = "--set=" + ",".join(
    f"monitoring.{each}.enabled=true" for each in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")
)
NODE: Final = {"__meta_kubernetes_pod_node_name": "gpu-7"}


def chart(kind: str) -> dict[str, Any]:
    return next(each for each in helm.objects(OPTIONS) if each["kind"] == kind and "certs" not in str(each["metadata"]))


def sidecar(stack: ExitStack, status: Path, address: str) -> None:
    """Start the sidecar of a pod whose status folder this is, at an address of its own."""
    status.mkdir(parents=True)
    command = [sys.executable, "-m", "gpushare_cli", "sidecar", f"--status={status}", f"--listen={address}:9403"]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
    stack.callback(process.wait, 10)
    stack.callback(process.terminate)


def service(name: str, port: int) -> Target:
    own = {"namespace": SYSTEM, "service": name, "job": name, "pod": f"{name}-x", "container": name, **NODE}
    return Target(f"127.0.0.1:{port}", own)


def pod(address: str, name: str) -> Target:
    labels = {
        "namespace": "asr", "pod": name, "container": "gpu-share", "job": f"{SYSTEM}/gpu-share-sidecar", **NODE,
        "__meta_kubernetes_pod_container_name": "gpu-share", "__meta_kubernetes_pod_ip": address,
    }  # fmt: skip
    return Target(address, labels)


@contextmanager
def scraped(folder: Path, services: Sequence[Target], sidecars: Sequence[Target]) -> Iterator[Prometheus]:
    """Run a Prometheus with the chart's rules that scrapes these."""
    jobs = [
        job("services", chart("ServiceMonitor")["spec"]["endpoints"][0], services),
        job("pods", chart("PodMonitor")["spec"]["podMetricsEndpoints"][0], sidecars),
    ]
    groups = [{**each, "interval": SECONDS} for each in chart("PrometheusRule")["spec"]["groups"]]
    with running(need("prometheus"), folder, jobs, {"groups": groups}) as prometheus:
        yield prometheus


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, titles of rows among them."""
    text = next(iter(chart("ConfigMap")["data"].values()))
    found: list[dict[str, Any]] = json.loads(text)["panels"]
    return found
