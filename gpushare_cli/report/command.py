"""``gpu-share report``: GPU memory of each namespace in a month, and its kills, from Prometheus.

The chart's recording rules add up each namespace's memory once a minute. Only series of enforcers count.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpushare.errors import ConfigError, GpuShareError
from gpushare_cli.options import PROMETHEUS_ADDRESS
from gpushare_cli.prometheus import JOB, Prometheus, Series
from gpushare_cli.terminal import FINE, NOT_FINE, show, table, warn
from gpushare_cli.words import clean

HOURS: Final[Mapping[str, str]] = {
    "reservedGiBHours": "namespace:gpu_share_memory_reserved_bytes:sum",
    "usedGiBHours": "namespace:gpu_share_memory_used_bytes:sum",
    "idleGiBHours": "namespace:gpu_share_memory_idle_bytes:sum",
}
"""Columns, and the rules that record bytes for them, once a minute."""
KILLS: Final = "sum by (namespace) (round(increase({}[{}s])))"
KILLED: Final = "gpu_share_namespace_kills_total"
RECORDED: Final = "cluster:gpu_share_enforcers_up:sum"
"""Has a sample for each minute in which the rules were evaluated and an enforcer was up."""
COMPLETE: Final = 0.99
"""Part of a month's minutes that have to be recorded."""
HEADERS: Final = ("NAMESPACE", "RESERVED", "USED", "IDLE", "KILLS")
UNIT: Final = "GPU memory in GiB hours"
DECEMBER: Final = 12


def run(args: argparse.Namespace) -> int:
    """Print the report. Returns 1 where Prometheus lacks a part of the month."""
    server = Prometheus.of(args)
    if server is None:
        raise ConfigError(f"name Prometheus with --prometheus URL or ${PROMETHEUS_ADDRESS}")
    now = datetime.now(UTC)
    start = args.month or now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = start.replace(year=start.year + start.month // DECEMBER, month=start.month % DECEMBER + 1)
    end = min(now, after)
    rows = [{"month": f"{start:%Y-%m}", **row} for row in usage(server, start, end)]
    _print(rows, args.output)
    lacks = [*_unrecorded(server, start, end), *server.warnings]
    for each in lacks:
        warn(each)
    return NOT_FINE if lacks else FINE


def usage(server: Prometheus, start: datetime, end: datetime) -> Iterator[dict[str, Any]]:
    """Yield the figures of each namespace, by name. Raises ``GpuShareError``."""
    seconds, at = round((end - start).total_seconds()), end.timestamp()
    found = {
        key: _by_namespace(server.at(f"sum_over_time({server.selector(rule)}[{seconds}s]) / 60 / 2^30", at))
        for key, rule in HOURS.items()
    }
    kills = _by_namespace(server.at(KILLS.format(server.selector(KILLED, JOB), seconds), at))
    for namespace in sorted({*kills, *(each for values in found.values() for each in values)}):
        hours = {key: round(values.get(namespace, 0.0), 3) for key, values in found.items()}
        if any(hours.values()) or kills.get(namespace):
            yield {"namespace": namespace, **hours, "kills": round(kills.get(namespace, 0.0))}


def _by_namespace(found: Sequence[Series]) -> dict[str, float]:
    """Return the values. Raises ``GpuShareError``: of a namespace there are two, of two clusters or two servers."""
    values, before = dict[str, float](), dict[str, Mapping[str, str]]()
    for each in found:
        name = clean(each.labels.get("namespace", ""))
        if before.setdefault(name, each.labels) != each.labels:
            different = sorted({key for key, _ in {*each.labels.items()} ^ {*before[name].items()}})
            raise GpuShareError(
                f"Prometheus has several series for namespace {name}, which differ in {', '.join(different)}; "
                "name one with --prometheus-label"
            )
        values[name] = each.points[0][1] if each.points else 0.0
    return values


def _unrecorded(server: Prometheus, start: datetime, end: datetime) -> Iterator[str]:
    seconds = round((end - start).total_seconds())
    found = server.at(f"count_over_time({server.selector(RECORDED)}[{seconds}s])", end.timestamp())
    recorded = _by_namespace(found).get("", 0.0) / 60
    if recorded < COMPLETE * seconds / 3600:
        yield (
            f"{start:%Y-%m}: Prometheus has {recorded:.1f} of {seconds / 3600:.1f} hours; the rest is not counted. It "
            "needs the chart's monitoring.prometheusRule.enabled, and has to keep its data for the month"
        )


def _print(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    if output == "csv":
        writer = csv.DictWriter(sys.stdout, ["month", "namespace", *HOURS, "kills"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return
    cells = [(row["namespace"], *(f"{row[key]:.1f}" for key in HOURS), row["kills"]) for row in rows]
    show(output, rows, [*table(HEADERS, cells), UNIT] if cells else ["no namespace reserved GPU memory"])
