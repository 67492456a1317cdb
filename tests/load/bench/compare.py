"""``python -m tests.load.bench``: our webhook beside floors, in one run: latency, reviews per second, CPU per review.

Every round visits every server with every load; figures are medians of the rounds. Our webhook and the Python floors
have one core, Go and the client have all. Connections are kept alive, over TLS 1.3.
"""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.load.bench import plot, report
from tests.load.bench.candidates import OURS, Candidate, all_of_them, left_out
from tests.load.bench.client import Load, drive
from tests.load.bench.pods import pods
from tests.support import reviews
from tests.support.pictures.svg import FOLDER as PICTURES

CONNECTIONS: Final = (1, 8)
FIGURES: Final = ("rate", "p50_ms", "p99_ms", "cpu_us", "client_cpu_us")
RATIOS: Final = ("rate", "p50_ms", "cpu_us")
COLUMNS: Final[report.Columns] = {
    "pod": lambda row: row["pod"],
    "connections": lambda row: str(row["connections"]),
    "server": lambda row: row["server"],
    "reviews/s": lambda row: f"{row['rate']:,.0f}",
    "p50 ms": lambda row: f"{row['p50_ms']:.2f}",
    "p99 ms": lambda row: f"{row['p99_ms']:.2f}",
    "CPU us": lambda row: f"{row['cpu_us']:.0f}",
    "client's CPU us": lambda row: f"{row['client_cpu_us']:.0f}",
    "ours / this: reviews/s": lambda row: _ratio(row, "rate"),
    "p50": lambda row: _ratio(row, "p50_ms"),
    "CPU": lambda row: _ratio(row, "cpu_us"),
}

Key = tuple[str, int, str]
"""Pod, connections, server."""
Rounds = Mapping[Key, list[dict[str, float]]]


def main(argv: list[str]) -> int:
    """Run it; returns the exit code."""
    asked = report.options("", __doc__, rounds=5, seconds=2.0).parse_args(argv)
    found = report.result("webhook", asked, left_out=left_out())
    with tempfile.TemporaryDirectory() as folder, all_of_them(Path(folder)) as servers:
        found["rows"] = list(rows(measure(servers, asked.rounds, asked.seconds)))
    report.publish(found, COLUMNS, asked.write)
    if asked.write:
        plot.write(found, PICTURES)
    return 0


def measure(servers: Iterable[Candidate], rounds: int, seconds: float) -> Rounds:
    """Return the figures of each round, by pod, connections and server."""
    bodies = {name: reviews.as_sent(pod) for name, pod in pods().items()}
    found = defaultdict(list)
    for _, (pod, body), connections, server in product(range(rounds), bodies.items(), CONNECTIONS, servers):
        found[pod, connections, server.name].append(once(server, body, connections, seconds))
    return found


def once(server: Candidate, body: bytes, connections: int, seconds: float) -> dict[str, float]:
    """Load one server, and return its ``FIGURES``."""
    before = server.cpu()
    load = Load(port=server.port, ca=server.ca, body=body, connections=connections, seconds=seconds)
    measured = drive(load).without_failures()
    return {
        "rate": measured.rate,
        "p50_ms": measured.quantile(0.5) * 1e3,
        "p99_ms": measured.quantile(0.99) * 1e3,
        "cpu_us": (server.cpu() - before) / measured.requests * 1e6,
        "client_cpu_us": measured.client_cpu / measured.requests * 1e6,
    }


def rows(found: Rounds) -> Iterator[dict[str, Any]]:
    """Yield medians; ``ours_to_this`` has the medians of the rounds' ratios of our webhook to a floor."""
    for (pod, connections, server), rounds in found.items():
        own = found[pod, connections, OURS]
        pairs = list(zip(own, rounds, strict=True))
        row: dict[str, Any] = {"pod": pod, "connections": connections, "server": server}
        row |= {name: median(each[name] for each in rounds) for name in FIGURES}
        if server != OURS:
            row["ours_to_this"] = {name: median(us[name] / it[name] for us, it in pairs) for name in RATIOS}
        yield row


def _ratio(row: report.Row, name: str) -> str:
    return f"{row['ours_to_this'][name]:.2f}" if "ours_to_this" in row else ""
