"""``python -m tests.load.bench api``: what admission adds at a real API server, ours beside a minimal webhook in Go.

One control plane without nodes and with the product. In every round the same pod is created, as a dry run, in three
namespaces: one without a webhook, one whose webhook in Go adds an annotation, and one that opted in. In the first two,
policies of ours for all namespaces end at their match conditions. CPU is measured at the paced rate.
"""

import base64
import copy
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from gpushare.contract import MANAGED_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import ADMISSION_V1, CORE_V1, path
from tests.integration.controlplane.bed import PODS, Bed
from tests.integration.controlplane.objects import Object
from tests.load.bench import report
from tests.load.bench.candidates import GO, OURS, Candidate, go, started
from tests.load.bench.client import Load, Measured, drive
from tests.load.bench.pods import pods
from tests.load.bench.usage import cpu_seconds
from tests.support import pki
from tests.testbed.cluster.controlplane import TENANT, ControlPlane, sweep

NONE: Final = "no webhook"
CLIENTS: Final = 50
RATE: Final = 200
PLANES: Final = report.FOLDER / "planes"
CONFIGURATIONS: Final = "mutatingwebhookconfigurations"
LABEL: Final = {"bench": "floor"}
FIGURES: Final = ("one_p50_ms", "one_p99_ms", "many_p50_ms", "many_p99_ms", "api_cpu_ms")
RATIOS: Final = ("one_p50_ms", "many_p50_ms", "api_cpu_ms")
COLUMNS: Final[report.Columns] = {
    "admission": lambda row: row["server"],
    "1 client: p50 ms": lambda row: f"{row['one_p50_ms']:.2f}",
    "added p50 / p99": lambda row: _added(row, "one_p50_ms", "one_p99_ms"),
    f"{CLIENTS} clients, {RATE}/s: p50 / p99 ms": lambda row: f"{row['many_p50_ms']:.2f} / {row['many_p99_ms']:.1f}",
    "added, p50 / p99": lambda row: _added(row, "many_p50_ms", "many_p99_ms"),
    "API server's CPU ms": lambda row: f"{row['api_cpu_ms']:.2f}",
    "added": lambda row: _added(row, "api_cpu_ms"),
    "webhook's CPU ms": lambda row: f"{row['webhook_cpu_ms']:.2f}",
    "ours / floor, added: p50, p50 of 50, CPU": lambda row: ", ".join(
        f"{row['ours_to_floor'][name]:.2f}" for name in RATIOS if "ours_to_floor" in row
    ),
}


@dataclass(frozen=True, slots=True)
class Way:
    """A namespace, and the webhook that its pods meet. ``expect`` is in every pod that went this way."""

    name: str
    namespace: str
    pod: Object
    expect: bytes
    webhook: Candidate | None = None


def main(argv: list[str]) -> int:
    """Run it; returns the exit code."""
    asked = report.options("api", __doc__, rounds=5, seconds=3.0).parse_args(argv)
    found = report.result("api", asked)
    with installed() as bed, ways(bed) as each:
        found["rows"] = rows(measure(bed, each, asked.rounds, asked.seconds))
    report.publish(found, COLUMNS, asked.write)
    return 0


@contextmanager
def installed() -> Iterator[Bed]:
    """Start a control plane with one replica of our webhook, called without the balancer between."""
    sweep(PLANES)
    plane = ControlPlane.start(PLANES / str(os.getpid()))
    try:
        bed = Bed.install(plane, replicas=1)
        where = path(ADMISSION_V1, CONFIGURATIONS, "gpu-share")
        configuration = bed.cluster.get(where)
        for webhook in configuration["webhooks"]:
            webhook["clientConfig"]["url"] = f"https://127.0.0.1:{bed.replicas[0].port}/mutate"
        bed.cluster.replace(where, configuration)
        plane.drop("balancer")
        yield bed
    finally:
        plane.stop()


@contextmanager
def ways(bed: Bed) -> Iterator[list[Way]]:
    """Make the namespaces and start the webhook in Go; wait until pods go the way that they shall."""
    asking, [replica] = pods()["typical"], bed.replicas
    del asking["metadata"]["namespace"]
    plain = copy.deepcopy(asking)
    plain["metadata"]["annotations"] = {"example.com/team": "a"}
    assert replica.process is not None
    product = Candidate(OURS, replica.port, "", replica.process.pid)
    with ExitStack() as stack:
        floor = stack.enter_context(_floor(bed))
        found = [
            Way(NONE, bed.namespace("none", opted_in=False), plain, b'"kind":"Pod"'),
            Way(GO, bed.namespace("floor", opted_in=False, labels=LABEL), plain, b'"floor":"seen"', floor),
            Way(OURS, bed.namespace("ours"), asking, f'"{MANAGED_LABEL}":"true"'.encode(), product),
        ]
        for way in found:
            account = path(CORE_V1, "serviceaccounts", namespace=way.namespace)
            bed.cluster.create(account, {"metadata": {"name": way.pod["spec"]["serviceAccountName"]}})
            bed.until(f"a pod in {way.namespace} is admitted", partial(_goes, bed, way))
        yield found


@contextmanager
def _floor(bed: Bed) -> Iterator[Candidate]:
    authority = pki.Authority()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pki.write(folder, authority.issue())
        ca = authority.bundle.decode()
        with started(GO, go(folder / "tls.crt", folder / "tls.key"), folder, ca) as floor:
            bed.cluster.create(path(ADMISSION_V1, CONFIGURATIONS), _configuration(floor))
            yield floor


def _configuration(floor: Candidate) -> Object:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    url, bundle = f"https://127.0.0.1:{floor.port}/mutate", base64.b64encode(floor.ca.encode()).decode()
    webhook = {
        "name": "floor.bench.example",
        "clientConfig": {"url": url, "caBundle": bundle},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": LABEL},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "floor"}, "webhooks": [webhook]}


def _goes(bed: Bed, way: Way) -> bool:
    try:
        made = bed.create(way.namespace, way.pod, dryRun="All")
    except ClusterError:
        return False
    return way.expect in json.dumps({"kind": "Pod", **made}, separators=(",", ":")).encode()


def measure(bed: Bed, each: Sequence[Way], rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round by the name of the way."""
    found = defaultdict(list)
    for _ in range(rounds):
        for way in each:
            found[way.name].append(once(bed, way, seconds))
    return found


def once(bed: Bed, way: Way, seconds: float) -> dict[str, float]:
    """Create pods with one client, then with many at a rate; returns milliseconds."""
    [server] = [each.pid for each in bed.plane.processes if each.name == "kube-apiserver"]
    one = create(bed, way, seconds)
    before, called = cpu_seconds(server), way.webhook.cpu() if way.webhook else 0.0
    many = create(bed, way, seconds, CLIENTS, RATE)
    used = way.webhook.cpu() - called if way.webhook else 0.0
    return {
        "one_p50_ms": one.quantile(0.5) * 1e3,
        "one_p99_ms": one.quantile(0.99) * 1e3,
        "many_p50_ms": many.quantile(0.5) * 1e3,
        "many_p99_ms": many.quantile(0.99) * 1e3,
        "api_cpu_ms": (cpu_seconds(server) - before) / many.requests * 1e3,
        "webhook_cpu_ms": used / many.requests * 1e3,
    }


def create(bed: Bed, way: Way, seconds: float, clients: int = 1, rate: float = 0.0) -> Measured:
    """Create the pod again and again as a tenant, as dry runs."""
    user = yaml.safe_load(bed.plane.kubeconfig(TENANT).read_text())["users"][0]["user"]
    load = Load(
        port=int(bed.plane.url.rpartition(":")[2]),
        ca=(bed.plane.root / "pki" / "ca.crt").read_text(),
        body=json.dumps(way.pod, separators=(",", ":")).encode(),
        connections=clients,
        seconds=seconds,
        rate=rate,
        path=f"{path(CORE_V1, PODS, namespace=way.namespace)}?dryRun=All",
        headers=(f"Authorization: Bearer {user['token']}",),
        status=b"HTTP/1.1 201 ",
        expect=way.expect,
    )
    return drive(load).without_failures()


def rows(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Return medians. What is added is the median of the rounds' differences to no webhook."""
    made: dict[str, dict[str, Any]] = {}
    for way, rounds in found.items():
        made[way] = {"server": way, **{name: median(each[name] for each in rounds) for name in rounds[0]}}
        if way != NONE:
            pairs = list(zip(rounds, found[NONE], strict=True))
            made[way]["added"] = {name: median(own[name] - none[name] for own, none in pairs) for name in FIGURES}
    ours, floor = made[OURS]["added"], made[GO]["added"]
    made[OURS]["ours_to_floor"] = {name: ours[name] / floor[name] for name in RATIOS}
    return list(made.values())


def _added(row: report.Row, *names: str) -> str:
    return " / ".join(f"{row['added'][name]:+.2f}" for name in names if "added" in row)
