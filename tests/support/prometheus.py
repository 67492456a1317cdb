"""A real Prometheus that scrapes what the chart's ServiceMonitor and PodMonitor would have it scrape."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.testbed.cluster.ports import free_ports

Object = dict[str, Any]
SECONDS: Final = "1s"
"""Between two scrapes, and two evaluations of the rules."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address, and the labels that discovery and the Prometheus Operator give it."""

    address: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    port: int

    def get(self, where: str, **arguments: str) -> Any:
        """Return the data of an answer of its API. Raises ``urllib.error.HTTPError`` where it refuses."""
        address = f"http://127.0.0.1:{self.port}/api/v1/{where}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[dict[str, str]]:
        """Return the labels of what a query returns now."""
        return [each["metric"] for each in self.get("query", query=query)["result"]]

    def answers(self, query: str) -> bool:
        """Whether a query returns anything; not while the server starts."""
        try:
            return bool(self.series(query))
        except (urllib.error.URLError, OSError):
            return False

    def selectors(self, query: str) -> Iterator[Object]:
        """Yield the selectors of series in a query, as Prometheus parses it."""
        yield from _selectors(self.get("parse_query", query=query))


def _selectors(found: Any) -> Iterator[Object]:
    if isinstance(found, list):
        for each in found:
            yield from _selectors(each)
    elif isinstance(found, dict):
        if found.get("type") in {"vectorSelector", "matrixSelector"}:
            yield found
        else:
            yield from _selectors(list(found.values()))


def job(name: str, endpoint: Object, targets: Sequence[Target]) -> Object:
    """Return the scrape configuration that the Prometheus Operator would make of an endpoint of a monitor."""
    return {
        "job_name": name,
        "honor_labels": endpoint.get("honorLabels", False),
        "static_configs": [{"targets": [each.address], "labels": dict(each.labels)} for each in targets],
        "relabel_configs": [_snake(each) for each in endpoint.get("relabelings", ())],
        "metric_relabel_configs": [_snake(each) for each in endpoint.get("metricRelabelings", ())],
    }


def _snake(rule: Object) -> Object:
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): value for key, value in rule.items()}


def concrete(query: str, interval: str, namespace: str = ".*") -> str:
    """Fill in the variables of the dashboard: all nodes, a namespace (a regular expression), the interval of rates."""
    for name, value in {"$node": ".*", "$namespace": namespace, "$__rate_interval": interval, "$__range": "1h"}.items():
        query = query.replace(name, value)
    return query


@contextmanager
def running(program: Path, folder: Path, jobs: Sequence[Object], rules: Object, *more: str) -> Iterator[Prometheus]:
    """Run the program with these jobs, rules and options, and end it."""
    (folder / "rules.json").write_text(json.dumps(rules))
    config = {
        "global": {"scrape_interval": SECONDS, "scrape_timeout": SECONDS, "evaluation_interval": SECONDS},
        "rule_files": ["rules.json"], "scrape_configs": list(jobs),
    }  # fmt: skip
    (folder / "prometheus.json").write_text(json.dumps(config))
    (port,) = free_ports(1)
    command = [
        str(program), f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", *more,
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(20)
