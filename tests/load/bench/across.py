"""``python -m tests.load.bench.across``: what node affinity does to packing, and what it costs the scheduler.

A real control plane, nodes that are API objects, GPUs published by the enforcer's own code, pods rewritten by the
webhook's own function and written by an administrator: neither webhook nor enforcer runs, so what is measured is the
stock scheduler. Its cost is CPU time, which a busy machine changes little; ways take turns and are compared in one run.
"""

import argparse
import copy
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar, cast, get_args

from gpushare.contract import DRIVER, MANAGED_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from gpushare.namespace_policy import NamespacePolicy
from tests.fakes.gpu.publish import publish_nodes
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import CLAIMS, NOW, PODS, TEMPLATES
from tests.integration.controlplane.checker import quantity
from tests.integration.controlplane.objects import HOSTNAME, Object
from tests.load.bench.usage import cpu_seconds
from tests.support.patience import holds_within
from tests.testbed.cluster.controlplane import SCHEDULER, ControlPlane
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import AcrossNodes, Settings

T = TypeVar("T")
ROOM: Final = {"cpu": "64", "memory": "512Gi", "pods": "110"}
REQUESTS: Final = {"cpu": "1", "memory": "4Gi"}
"""Of a node and of each pod's container: by these alone the scheduler compares nodes that a pod fits on."""
MACHINE: Final = "quad-16g"
GPUS, GPU_MIB = 4, 16 * 1024
SIZES: Final = (1024, 2048, 3072, 4096, 6500, 12288)
WHOLE: Final = GPU_MIB
WRITERS: Final = 8
PATIENCE: Final = 20
"""Calls that may be lost in a row."""
ZONE: Final = "example.com/zone"
SETTLED: Final = 15.0
"""Seconds without another binding after which the rest is taken to find no room."""
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
Dress = Callable[[Object, int], None]
"""Changes a pod, given its number, before the webhook sees it."""


def constraint(pod: Object, _: int) -> None:
    """The other way to spread, which counts pods of the pod's own namespace only."""
    selector = {"matchLabels": {MANAGED_LABEL: "true"}}
    pod["spec"]["topologySpreadConstraints"] = [
        {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    ]


def prefers_zone(pod: Object, _: int) -> None:
    """A tenant's own preference about nodes."""
    wanted = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": wanted}]}}


def lives_in_b(pod: Object, _: int) -> None:
    """A pod that has no choice of zones."""
    pod["spec"]["nodeSelector"] = {ZONE: "b"}


def avoids_siblings(pod: Object, number: int) -> None:
    """A tenant's own preference about pods: five replicas keep apart."""
    labels = {"app": f"app-{number // 5}"}
    pod["metadata"]["labels"] = labels
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}
    pod["spec"]["affinity"] = {"podAntiAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": term}]}}


def keeps_even(pod: Object, number: int) -> None:
    """A tenant's own constraint: five replicas on as many nodes, where that can be had."""
    labels = {"app": f"app-{number // 5}"}
    pod["metadata"]["labels"] = labels
    even = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway"}
    pod["spec"]["topologySpreadConstraints"] = [even | {"labelSelector": {"matchLabels": labels}}]


def serves(pod: Object, number: int) -> None:
    """Five pods behind a Service each: the scheduler's own default spreads those."""
    pod["metadata"]["labels"] = {"app": f"app-{number // 5}"}


DRESSES: Final[dict[str, Dress]] = {
    "zone": prefers_zone, "siblings": avoids_siblings, "even": keeps_even, "service": serves,
}  # fmt: skip
WAYS: Final = (*get_args(AcrossNodes), "constraint")


@dataclass(slots=True)
class Field:
    """Nodes and their GPUs on a control plane; ``round`` is a namespace that comes and goes."""

    plane: ControlPlane
    nodes: int
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @contextmanager
    def round(self) -> Iterator[str]:
        """A fresh namespace; all of its pods and claims are gone afterwards."""
        cluster, name = self.plane.cluster(), f"round-{next(self.numbers)}"
        pods, claims = (path(base, kind, namespace=name) for base, kind in ((CORE_V1, PODS), (RESOURCE_V1, CLAIMS)))
        cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": name}})
        account = path(CORE_V1, "serviceaccounts", namespace=name)
        assert holds_within(lambda: bool(cluster.list(account)[0]), 60)
        for mib in (*SIZES, WHOLE):
            cluster.create(path(RESOURCE_V1, TEMPLATES, namespace=name), template_for(made("x", mib, "none")) or {})
        yield name
        stubborn(lambda: cluster.delete(pods, NOW))
        assert holds_within(lambda: not stubborn(lambda: cluster.list(claims))[0], 300)

    def create(self, name: str, bodies: Iterable[Object]) -> None:
        """Write pods, several at a time."""
        cluster, where = self.plane.cluster(), path(CORE_V1, PODS, namespace=name)
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda body: stubborn(lambda: cluster.create(where, body)), bodies))

    def serve(self, name: str, apps: Iterable[str]) -> None:
        """Make a Service for each app."""
        for app in apps:
            spec = {"selector": {"app": app}, "ports": [{"port": 80}]}
            body = {"metadata": {"name": app}, "spec": spec}
            stubborn(lambda body=body: self.plane.cluster().create(path(CORE_V1, "services", namespace=name), body))  # type: ignore[misc] # bound now

    def pending(self, name: str) -> int:
        """How many pods have no node yet."""
        where = path(CORE_V1, PODS, namespace=name)
        return len(stubborn(lambda: self.plane.cluster().list(where, fieldSelector="spec.nodeName="))[0])

    def settle(self, name: str) -> None:
        """Wait until all pods are bound, or no other one has been for a while."""
        since, before = time.monotonic(), -1
        while now := self.pending(name):
            if now != before:
                since, before = time.monotonic(), now
            elif time.monotonic() - since > SETTLED:
                return
            time.sleep(0.3)

    def pods(self, name: str) -> list[Object]:
        """All pods of the round."""
        return stubborn(lambda: self.plane.cluster().list(path(CORE_V1, PODS, namespace=name)))[0]

    def held(self, name: str) -> dict[tuple[str, str], int]:
        """By node and device, MiB taken."""
        found: dict[tuple[str, str], int] = defaultdict(int)
        claims = path(RESOURCE_V1, CLAIMS, namespace=name)
        for claim in stubborn(lambda: self.plane.cluster().list(claims))[0]:
            for each in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                memory = (each.get("consumedCapacity") or {}).get("memory")
                if memory and each["driver"] == DRIVER:
                    found[each["pool"], each["device"]] += int(quantity(memory) / 2**20)
        return dict(found)

    def spent(self, name: str, bodies: Sequence[Object]) -> float:
        """Create pods that all find room; CPU milliseconds of the scheduler for each."""
        before = self.scheduler_cpu()
        self.create(name, bodies)
        self.settle(name)
        assert not self.pending(name)
        return (self.scheduler_cpu() - before) / len(bodies) * 1e3

    def scheduler_cpu(self) -> float:
        """CPU seconds of the scheduler so far."""
        [process] = [each for each in self.plane.processes if each.name == f"kube-{SCHEDULER}"]
        return cpu_seconds(process.pid)


def stubborn(call: Callable[[], T]) -> T:
    """Ask a busy API server again; what was made by an answer that did not arrive is there."""
    for attempt in range(PATIENCE):
        try:
            return call()
        except ClusterError as error:
            if error.status == HTTPStatus.CONFLICT and attempt:
                return cast("T", {})
            if error.final:
                raise
    raise TimeoutError("the API server does not answer")


def made(name: str, mib: int, way: str, dress: Dress | None = None, number: int = 0) -> Object:
    """A sharing pod as the webhook would make it."""
    pod = objects.pod(name, f"{mib}Mi")
    pod["metadata"]["namespace"] = "x"
    pod["spec"]["containers"][0]["resources"] = {"requests": dict(REQUESTS)}
    for each in (dress, constraint if way == "constraint" else None):
        if each:
            each(pod, number)
    settings = Settings(across_nodes="none" if way == "constraint" else way)  # type: ignore[arg-type] # one of its choices
    after = copy.deepcopy(dict(mutate_pod(pod, policy=NamespacePolicy(), settings=settings).pod))
    del after["metadata"]["namespace"]
    return after


@contextmanager
def laid_out(nodes: int) -> Iterator[Field]:
    """A control plane with that many nodes of four GPUs, half of them in zone a."""
    with tempfile.TemporaryDirectory(prefix="across-") as folder:
        plane = ControlPlane.start(Path(folder) / "plane", client_rate=300)
        try:
            cluster = plane.cluster()
            manifests.apply(cluster, [each for each in manifests.load() if each["kind"] == "DeviceClass"])
            names = [f"node-{number}" for number in range(nodes)]
            for number, name in enumerate(names):
                body = objects.node(name, {ZONE: "ab"[number % 2]})
                body["status"] |= {"capacity": ROOM, "allocatable": ROOM}
                cluster.create(path(CORE_V1, "nodes"), body)
                cluster.patch(path(CORE_V1, "nodes", name), {"spec": {"taints": None}})
            publish_nodes(cluster, names, MACHINE)
            yield Field(plane, nodes)
        finally:
            plane.stop()


def drawn(rng: random.Random, mib: int) -> list[int]:
    """Sizes that add up to just over so many MiB."""
    sizes: list[int] = []
    while sum(sizes) < mib:
        sizes.append(rng.choice(SIZES))
    return sizes


def packed(there: Field, way: str, seed: int) -> str:
    """Fill to 60 %, take a random half away, fill to 50 %; then ask for as many whole GPUs as could be free."""
    rng, total = random.Random(seed), there.nodes * GPUS * GPU_MIB
    with there.round() as name:
        first = drawn(rng, total * 6 // 10)
        there.create(name, [made(f"a-{n}", mib, way) for n, mib in enumerate(first)])
        there.settle(name)
        gone = rng.sample(range(len(first)), len(first) // 2)
        for number in gone:
            where = path(CORE_V1, PODS, f"a-{number}", name)
            stubborn(lambda where=where: there.plane.cluster().delete(where, NOW))  # type: ignore[misc] # bound now
        assert holds_within(
            lambda: len(there.held(name)) > 0 and not _leaving(there, name, len(first) - len(gone)), 300
        )
        kept = sum(first) - sum(first[n] for n in gone)
        there.create(name, [made(f"b-{n}", mib, way) for n, mib in enumerate(drawn(rng, total // 2 - kept))])
        there.settle(name)
        held = there.held(name)
        best = there.nodes * GPUS + sum(held.values()) // -GPU_MIB
        there.create(name, [made(f"whole-{n}", WHOLE, way) for n in range(best)])
        there.settle(name)
        late = sum(bool(pod["spec"].get("nodeName")) for pod in there.pods(name) if "whole" in pod["metadata"]["name"])
    nodes, used = len({node for node, _ in held}), len(held)
    whole = f"{late:>3} of {best} whole GPUs fit"
    return f"{nodes:>3} of {there.nodes} nodes, {used:>3} of {there.nodes * GPUS} GPUs hold shares; {whole}"


def _leaving(there: Field, name: str, left: int) -> bool:
    claims = path(RESOURCE_V1, CLAIMS, namespace=name)
    return len(stubborn(lambda: there.plane.cluster().list(claims))[0]) > left


def respected(there: Field, way: str, seed: int) -> str:
    """What becomes of the pods' own preferences, where zone b was filled before with some that had to be there."""
    rng, said = random.Random(seed), []
    for dress, change in DRESSES.items():
        with there.round() as name:
            there.create(name, [made(f"b-{n}", SIZES[0], way, lives_in_b) for n in range(there.nodes)])
            there.settle(name)
            bodies = [made(f"a-{n}", rng.choice(SIZES[:4]), way, change, n) for n in range(there.nodes * 5)]
            if dress == "service":
                there.serve(name, sorted({body["metadata"]["labels"]["app"] for body in bodies}))
            there.create(name, bodies)
            there.settle(name)
            said.append(f"{dress}: {_kept(there.pods(name), dress)}")
    return "; ".join(said)


def _kept(everybody: Sequence[Object], dress: str) -> str:
    pods = [pod for pod in everybody if pod["metadata"]["name"].startswith("a-")]
    nodes = Counter(pod["spec"].get("nodeName", "") for pod in pods)
    if dress == "zone":
        inside = sum(int(node.rpartition("-")[2]) % 2 == 0 for node in nodes.elements())
        return f"{inside} of {len(pods)} in their zone, on {len(nodes)} nodes"
    apps = Counter((pod["metadata"]["labels"]["app"], pod["spec"].get("nodeName")) for pod in pods)
    return f"{sum(n - 1 for n in apps.values())} of {len(pods)} beside a sibling, on {len(nodes)} nodes"


def cost(there: Field, way: str, seed: int, pods: int, batch: int) -> list[float]:
    """CPU milliseconds of the scheduler for a pod: in each batch up to ``pods``; last, one that shares nothing."""
    rng, found = random.Random(seed), []
    with there.round() as name:
        for start in range(0, pods, batch):
            sizes = [rng.choice(SIZES[:4]) for _ in range(batch)]
            found.append(there.spent(name, [made(f"a-{start + n}", mib, way) for n, mib in enumerate(sizes)]))
        found.append(there.spent(name, [plain(f"plain-{n}") for n in range(batch)]))
    return found


def plain(name: str) -> Object:
    """A pod without a share."""
    pod = objects.pod(name)
    pod["spec"]["containers"][0]["resources"] = {"requests": dict(REQUESTS)}
    return pod


def costs(there: Field, ways: Sequence[str], options: argparse.Namespace) -> None:
    """Interleave the ways, and compare each with ``none``."""
    seen: dict[str, list[list[float]]] = defaultdict(list)
    for seed in range(options.rounds):
        for way in random.Random(seed).sample(ways, len(ways)):
            seen[way].append(cost(there, way, seed, options.pods, options.batch))
            print(f"  seed {seed} {way:<12}", " ".join(f"{cpu:.1f}" for cpu in seen[way][-1]), flush=True)
    print("\nCPU ms of the scheduler for a pod, batch by batch (ratio to the first way); last, pods without a share")
    middle = {way: [statistics.median(run) for run in zip(*seen[way], strict=True)] for way in ways}
    for way in ways:
        line = [f"{cpu:.1f} ({cpu / none:.2f})" for cpu, none in zip(middle[way], middle[ways[0]], strict=True)]
        print(f"  {way:<12}", "  ".join(line))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.load.bench.across", description=__doc__)
    parser.add_argument("what", choices=("packing", "own", "cost"))
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pods", type=int, default=1000, help="cost: pods in all")
    parser.add_argument("--batch", type=int, default=200, help="cost: pods measured together")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    options = parser.parse_args(argv)
    print(
        f"{options.nodes} nodes x {GPUS} GPUs of {GPU_MIB} MiB; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    with laid_out(options.nodes) as there:
        if options.what == "cost":
            costs(there, options.ways, options)
            return 0
        run = packed if options.what == "packing" else respected
        for seed, way in itertools.product(range(options.rounds), options.ways):
            print(f"  seed {seed} {way:<12}", run(there, way, seed), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
