"""``python -m tests.load.bench soak``: the webhook for ten minutes at 1,000 reviews per second, then 500 connections.

The webhook has one core. At the rate, a latency counts from when the request was due. With 500 connections each sends
as soon as it has its answer; what matters is the slowest answer.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from tests.load.bench import report
from tests.load.bench.candidates import Candidate, ours
from tests.load.bench.client import Load, drive
from tests.load.bench.pods import pods
from tests.support import reviews

RATE: Final = 1000.0
KEPT: Final = 25
"""Idle connections that an API server keeps to a webhook (client-go's ``idleConnsPerHost``)."""
MANY: Final = 500
MANY_SECONDS: Final = 10.0
COLUMNS: Final[report.Columns] = {
    "load": lambda row: f"{row['rate']:,.0f}/s for {row['seconds']:.0f} s" if row["rate"] else "as fast as answered",
    "connections": lambda row: str(row["connections"]),
    "reached": lambda row: f"{row['requests'] / row['seconds']:,.0f}/s",
    "requests": lambda row: f"{row['requests']:,}",
    "failures": lambda row: f"{row['failures']}",
    "p50 ms": lambda row: f"{row['p50_ms']:.1f}",
    "p99 ms": lambda row: f"{row['p99_ms']:.1f}",
    "slowest ms": lambda row: f"{row['max_ms']:.0f}",
    "CPU us": lambda row: f"{row['cpu_us']:.0f}",
}


def main(argv: list[str]) -> int:
    """Run it; returns the exit code, 1 after a failed request."""
    asked = report.options("soak", __doc__, rounds=1, seconds=600.0).parse_args(argv)
    found: dict[str, Any] = report.result("soak", asked, rows=[])
    body = reviews.as_sent(pods()["typical"])
    loads = [(KEPT, asked.seconds, RATE), (MANY, min(MANY_SECONDS, asked.seconds), 0.0)]
    with tempfile.TemporaryDirectory() as folder, ours(Path(folder)) as webhook:
        for connections, seconds, rate in loads * asked.rounds:
            load = Load(
                port=webhook.port, ca=webhook.ca, body=body, connections=connections, seconds=seconds, rate=rate
            )
            found["rows"].append(row(load, webhook))
    report.publish(found, COLUMNS, asked.write)
    return int(any(each["failures"] for each in found["rows"]))


def row(load: Load, webhook: Candidate) -> dict[str, Any]:
    """Run one load; returns a row of the table."""
    before = webhook.cpu()
    measured = drive(load)
    return {
        "rate": load.rate,
        "connections": load.connections,
        "seconds": measured.seconds,
        "requests": len(measured.latencies),
        "failures": measured.failures,
        "first_failure": measured.first_failure,
        "p50_ms": measured.quantile(0.5) * 1e3,
        "p99_ms": measured.quantile(0.99) * 1e3,
        "max_ms": measured.latencies[-1] * 1e3,
        "cpu_us": (webhook.cpu() - before) / measured.requests * 1e6,
    }
