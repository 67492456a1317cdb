"""``python -m tests.load.bench fair``: whether honest reviews are answered while attackers send the worst bodies.

For each size a search looks for the body that costs most CPU for its size. Then thirty attackers of another namespace
send that body, each as soon as it has an answer, beside honest reviews at a fixed rate. With ``--against CHECKOUT``
the webhook of another checkout takes turns with ours, without attackers too.
"""

import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from gpushare import contract
from tests.load.bench import report
from tests.load.bench.candidates import Candidate
from tests.load.bench.client import Load, Measured, drive
from tests.load.bench.pods import pods
from tests.support import reviews
from tests.support.bodies import families
from tests.support.bodies.families import allowed, cost
from tests.support.bodies.search import Search
from tests.support.webhook import ROOT, serving

SIZES: Final = (20_000, 64_000, 256_000, 512_000, 1_000_000, 7_300_000)
ATTACKERS: Final = 30
HONEST: Final = 4
HONEST_RATE: Final = 20.0
MOST_P99_MS: Final = 1000.0
TIMEOUT_SECONDS: Final = 3.0
"""The API server waits so long with our configuration: a later answer is a failure."""
RUNS: Final = 5
BEGIN_SECONDS: Final = 3.0
"""Until all attackers are connected."""
OTHER_NAMESPACE: Final = "other"
NAMESPACES: Final = [
    {
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {contract.NAMESPACE_LABEL: "true"},
            "annotations": {contract.HOST_PATHS: ",".join(f"/data/{number}" for number in range(64))},
        },
    }
    for name in (reviews.NAMESPACE, OTHER_NAMESPACE)
]
COLUMNS: Final[report.Columns] = {
    "attackers' bodies": lambda row: f"{row['bytes']:,} B, {row['family']}" if row["bytes"] else "none",
    "CPU ms": lambda row: f"{row['cpu_ms']:.1f}" if row["bytes"] else "",
    "allowed ms": lambda row: f"{row['allowed_ms']:.0f}" if row["bytes"] else "",
    "webhook": lambda row: row["webhook"],
    "honest reviews": lambda row: f"{row['reviews']}",
    "failures": lambda row: f"{row['failures']}",
    "p50 ms": lambda row: f"{row['p50_ms']:.1f}",
    "p99 ms": lambda row: f"{row['p99_ms']:.0f}",
    "slowest ms": lambda row: f"{row['max_ms']:.0f}",
    "CPU us": lambda row: f"{row['cpu_us']:.0f}" if not row["bytes"] else "",
}
NO_BODY: Final = {"bytes": 0, "family": "", "cpu_ms": 0.0, "allowed_ms": 0.0}


def main(argv: list[str]) -> int:
    """Run it; returns the exit code, 1 where a body costs too much or an honest review waits too long."""
    parser = report.options("fair", __doc__, rounds=3, seconds=10.0)
    parser.add_argument("--search", type=float, default=60.0, help="CPU seconds of the search for each size")
    parser.add_argument("--seed", type=int, default=1, help="of the search")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another version, which takes turns")
    asked = parser.parse_args(argv)
    roots = {"ours": ROOT} | ({"other": asked.against} if asked.against else {})
    asked.against = float(bool(asked.against))
    found: dict[str, Any] = report.result("fair", asked, rows=[])
    attacks = [*worst_bodies(asked.search, asked.seed)]
    with ExitStack() as stack:
        servers = [stack.enter_context(_started(name, root)) for name, root in roots.items()]
        for body, facts in [(b"", NO_BODY), *attacks]:
            rounds = {server.name: list[dict[str, float]]() for server in servers}
            for server in servers * asked.rounds:
                rounds[server.name].append(once(server, body, asked.seconds))
            found["rows"] += [{**facts, "webhook": name, **_together(each)} for name, each in rounds.items()]
    report.publish(found, COLUMNS, asked.write)
    return int(any(map(_is_bad, found["rows"])))


def worst_bodies(seconds: float, seed: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Search at each size; yields the body that costs most for its size, and what it costs."""
    with families.collecting():
        for size in SIZES:
            search = Search(lambda body: cost(body, 2) / allowed(len(body)), size, random.Random(seed))
            search.begin()
            until = time.process_time() + seconds
            while time.process_time() < until:
                search.step()
            body, family = max((cost(one, RUNS) / allowed(len(one)), one, name) for _, one, name in search.best)[1:]
            facts = {"bytes": len(body), "family": family, "tried": search.tried}
            facts |= {"cpu_ms": cost(body, RUNS) * 1e3, "allowed_ms": allowed(len(body)) * 1e3}
            print(facts, flush=True)
            yield body.replace(_namespace(reviews.NAMESPACE), _namespace(OTHER_NAMESPACE), 1), facts


def once(server: Candidate, body: bytes, seconds: float) -> dict[str, float]:
    """Send honest reviews, beside attackers if there is a body for them."""
    with ThreadPoolExecutor(1) as pool:
        if body:
            attack = pool.submit(drive, _attack(server, body, seconds + 2 * BEGIN_SECONDS))
            time.sleep(BEGIN_SECONDS)
        before = server.cpu()
        honest = drive(_honest(server, seconds))
        spent = server.cpu() - before
        if body:
            attack.result()
    return _figures(honest) | {"cpu_us": spent / honest.requests * 1e6}


@contextmanager
def _started(name: str, root: Path) -> Iterator[Candidate]:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), namespaces=NAMESPACES, root=root) as webhook:
        yield Candidate(name, webhook.port, webhook.authority.bundle.decode(), webhook.process.pid)


def _honest(server: Candidate, seconds: float) -> Load:
    return Load(
        port=server.port,
        ca=server.ca,
        body=reviews.as_sent(pods()["typical"]),
        connections=HONEST,
        seconds=seconds,
        rate=HONEST_RATE,
    )


def _attack(server: Candidate, body: bytes, seconds: float) -> Load:
    """Take any answer, a refusal too."""
    return Load(
        port=server.port,
        ca=server.ca,
        body=body,
        connections=ATTACKERS,
        seconds=seconds,
        status=b"HTTP/1.1 ",
        expect=b"",
    )


def _figures(measured: Measured) -> dict[str, float]:
    late = sum(each > TIMEOUT_SECONDS for each in measured.latencies)
    return {
        "reviews": measured.requests,
        "failures": measured.failures + late,
        "p50_ms": measured.quantile(0.5) * 1e3,
        "p99_ms": measured.quantile(0.99) * 1e3,
        "max_ms": measured.latencies[-1] * 1e3,
    }


def _together(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return sums of counts, the slowest answer, and medians of the rest."""
    counts = {name: sum(each[name] for each in rounds) for name in ("reviews", "failures")}
    medians = {name: median(each[name] for each in rounds) for name in ("p50_ms", "p99_ms", "cpu_us")}
    return {**counts, **medians, "max_ms": max(each["max_ms"] for each in rounds)}


def _is_bad(row: Mapping[str, Any]) -> bool:
    too_expensive = row["cpu_ms"] > row["allowed_ms"]
    return bool(row["webhook"] == "ours" and (too_expensive or row["failures"] or row["p99_ms"] > MOST_P99_MS))


def _namespace(name: str) -> bytes:
    return f'"namespace":"{name}","operation"'.encode()
