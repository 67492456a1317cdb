"""``python -m tests.load.bench.flat``: what the webhook and the enforcer cost on clusters of 10 to 5,000 nodes.

One webhook for each size, all at once: real processes with their watches, on API servers that have a fleet's lists
(``lists``, ``fleet``). Each in turn answers reviews and sees pods come, change and go, so that what else the machine
does falls on all alike. The enforcer's part is what it works out when one of its own pods changes, in this process.
Exit code 1: something costs more than 1.3 times as much as on the smallest cluster, or takes more than 150 MB.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from enforcer.dra.quotas import quotas_of_prepared
from enforcer.quota.informer import QuotaInformer
from tests.load.bench.client import Load, drive
from tests.load.bench.fleet import Fleet
from tests.load.bench.lists import CHANGES
from tests.load.bench.pods import pods as asking
from tests.load.bench.usage import cpu_seconds
from tests.support import reviews
from tests.support.webhook import Webhook, serving
from tests.support.wiring import Rule

SIZES: Final = ((10, 100), (100, 1_000), (1_000, 10_000), (5_000, 50_000))
FLAT: Final = 1.3
MEMORY_MB: Final = 150
EVENTS: Final = CHANGES + 2 + 3
"""Of a pod that comes and goes, and of its claim."""
BATCH: Final = 200
"""Pods that come and go in one turn."""
NODE_PODS: Final = 20
SPACES: Final = 4
TURNS: Final = 200
PATIENCE: Final = 600.0
COLUMNS: Final = "{:>6} {:>7} {:>11} {:>10} {:>8} {:>12} {:>11} {:>8} {:>11} {:>8}"


@dataclass(slots=True)
class World:
    """One size: the webhook, its API server's port, and what each turn cost in seconds of CPU."""

    fleet: Fleet
    webhook: Webhook
    port: int
    listing: float
    """Seconds of CPU until everything was listed."""
    peak: float = 0.0
    """MB, of the process that answers."""
    costs: dict[str, list[float]] = field(default_factory=dict)
    seen: int = 0

    @property
    def pid(self) -> int:
        """Of the process that answers."""
        return self.webhook.worker_pids()[0]

    def events(self) -> float:
        """CPU of one event."""
        first = self.fleet.pods + self.seen
        self.seen += BATCH
        before = cpu_seconds(self.pid)
        call = f"http://127.0.0.1:{self.port}/bench/pods?from={first}&to={first + BATCH}"
        with urllib.request.urlopen(urllib.request.Request(call, data=b""), timeout=600) as answer:
            answer.read()
        return (cpu_seconds(self.pid) - before) / (BATCH * EVENTS)

    def admission(self, seconds: float) -> float:
        """CPU of one review of a pod that asks."""
        pod = asking()["typical"]
        pod["metadata"]["namespace"] = self.fleet.namespace_of(0)
        body = reviews.encoded(pod, namespace=self.fleet.namespace_of(0))
        counted = "gpu_share_admission_duration_seconds_count"
        before, answered = cpu_seconds(self.pid), self.webhook.metric(counted)
        ca = self.webhook.authority.bundle.decode()
        drive(Load(port=self.webhook.port, ca=ca, body=body, connections=1, seconds=seconds)).without_failures()
        return (cpu_seconds(self.pid) - before) / (self.webhook.metric(counted) - answered)


class Node:
    """What an enforcer has in mind: its own pods, and all namespaces that take part."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        rule = Rule(lambda seen: quotas_of_prepared((), seen["pods"], seen["namespaces"], ()))
        self.books = QuotaInformer(rule, threading.Event())
        self.books.replace("namespaces", (json.loads(fleet.namespace(each)) for each in range(fleet.namespaces)))
        spaces = fleet.namespaces  # a node has pods of as many namespaces however many there are
        self.pods = [json.loads(fleet.pod(each % SPACES + each // SPACES * spaces)) for each in range(NODE_PODS)]
        self.books.replace("pods", self.pods)
        self.costs: list[float] = []

    def turn(self) -> float:
        """CPU of one event of a pod of the node, and of working out the quotas."""
        before = time.process_time()
        for number in range(TURNS):
            self.books.on_event("pods", "MODIFIED", self.pods[number % NODE_PODS])
            self.books.quotas()
        return (time.process_time() - before) / TURNS


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.load.bench.flat", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each size; the middle one counts (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of reviews in each turn (default 1)")
    parser.add_argument(
        "--apart", action="store_true", help="every pod has a template of its own: the most there can be"
    )
    options = parser.parse_args(argv)
    fleets = [Fleet(nodes, pods, apart=options.apart) for nodes, pods in SIZES]
    with ExitStack() as stack:
        worlds = [stack.enter_context(world(fleet)) for fleet in fleets]
        nodes = [Node(fleet) for fleet in fleets]
        for _ in range(options.rounds):
            take_turns(worlds, nodes, options.seconds)
        for each in worlds:
            each.peak = peak_mb(each.pid)
    return report(worlds, nodes)


def take_turns(worlds: Sequence[World], nodes: Sequence[Node], seconds: float) -> None:
    """One round: each size once, for each kind of cost."""
    works: dict[str, Callable[[World], float]] = {
        "admission": lambda world: world.admission(seconds),
        "event": lambda world: world.events(),
    }
    for name, work in works.items():
        for each in worlds:
            each.costs.setdefault(name, []).append(work(each))
    for node in nodes:
        node.costs.append(node.turn())


def report(worlds: Sequence[World], nodes: Sequence[Node]) -> int:
    """Print the table. Returns 1 where a limit is broken."""
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    print(COLUMNS.format("NODES", "PODS", "TEMPLATES", "ADMISSION", "RATIO", "EVENT", "RATIO", "NODE", "RATIO", "PEAK"))
    worst = 0.0
    for world, node in zip(worlds, nodes, strict=True):
        shown: list[str] = []
        for here, first in (
            (world.costs["admission"], worlds[0].costs["admission"]),
            (world.costs["event"], worlds[0].costs["event"]),
            (node.costs, nodes[0].costs),
        ):
            times = ratio(here, first)
            worst = max(worst, times)
            shown += [f"{statistics.median(here) * 1e6:.0f} us", f"{times:.2f}"]
        fleet = world.fleet
        print(COLUMNS.format(fleet.nodes, fleet.pods, len(fleet.templates), *shown, f"{world.peak:.0f} MB"))
    listed = ", ".join(f"{each.listing:.1f} s" for each in worlds)
    print(f"CPU until everything was listed: {listed}")
    peak = max(each.peak for each in worlds)
    print(f"largest ratio {worst:.2f} of {FLAT}; largest peak {peak:.0f} MB of {MEMORY_MB}")
    return int(worst > FLAT or peak > MEMORY_MB)


def ratio(here: Sequence[float], first: Sequence[float]) -> float:
    """The middle one of the rounds' ratios: the two of a round were taken one after the other."""
    return statistics.median(one / other for one, other in zip(here, first, strict=True))


@contextmanager
def world(fleet: Fleet) -> Iterator[World]:
    """A webhook that has listed a fleet."""
    command = [
        sys.executable,
        "-m",
        "tests.load.bench.lists",
        str(fleet.nodes),
        str(fleet.pods),
        *["apart"] * fleet.apart,
    ]
    with tempfile.TemporaryDirectory() as name, subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            port = int(server.stdout.readline())
            options = [f"--kubeconfig={kubeconfig(Path(name), port)}"]
            with serving(Path(name), options=options, watching=True, patience=PATIENCE) as webhook:
                made = World(fleet, webhook, port, cpu_seconds(webhook.worker_pids()[0]))
                yield made
        finally:
            server.kill()


def kubeconfig(folder: Path, port: int) -> Path:
    content: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "x", "user": {"token": "none"}}],
    }  # fmt: skip
    file = folder / "kubeconfig"
    file.write_text(json.dumps(content))
    return file


def peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
