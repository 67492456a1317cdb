"""Records of an audit log as people ask for them: which ones, as rows of a table, as lines of CSV. Pure.

A chain that holds may still have been written by anybody: nothing in a record is taken to have its shape, and what
others chose neither steers the reader's terminal nor is a formula to their spreadsheet.
"""

import csv
import difflib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from gpushare.errors import ConfigError
from gpushare.patterns import Pattern
from gpushare.raw_objects import moment
from gpushare.reasons import Reason

Record = Mapping[str, Any]
HEADERS: Final = ("SEQ", "TIME", "KIND", "POD", "CONTAINER", "GPU", "USED", "QUOTA", "RESULT", "PIDS")
NODE: Final = "NODE"
COLUMNS: Final = (
    "seq", "time", "kind", "node", "namespace", "pod", "podUid", "container", "containerId", "gpu", "usedMiB",
    "quotaMiB", "ceilingMiB", "overFor", "action", "intent", "result", "reason", "note", "targets", "other",
    "prev", "hash",
)  # fmt: skip
"""Of the CSV form. ``targets`` is JSON, and so is ``other``: all that has no column. What is not there is empty."""
FORMULA: Final = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""A cell that begins so is a formula to a spreadsheet, in some locales also by the wide forms; it gets a ``'``."""
_SHORT_GPU: Final = 12
_AGE: Final = Pattern(r"(\d{1,6})([smhd])", 7)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_RESULTS: Final = {str(reason).lower(): str(reason) for reason in Reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """What of a log is asked for; what is empty or ``None`` asks nothing."""

    namespace: str | None = None
    pod: str | None = None
    container: str | None = None
    node: str | None = None
    kinds: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    since: datetime | None = None
    """A record whose time cannot be read is shown all the same: nobody hides behind a label."""

    def matches(self, record: Record) -> bool:
        """Tell whether a record is asked for."""
        pod = pod_of(record)
        pairs = (
            (self.namespace, pod.get("namespace")),
            (self.pod, pod.get("name")),
            (self.container, record.get("container")),
            (self.node, record.get("node")),
        )
        if any(asked is not None and asked != found for asked, found in pairs):
            return False
        return _among(record, "kind", self.kinds) and _among(record, "result", self.results) and self._recent(record)

    def _recent(self, record: Record) -> bool:
        when = moment(record.get("time"))
        return self.since is None or when is None or when >= self.since


def since(text: str, now: datetime) -> datetime:
    """Read ``--since``: an age such as ``2h``, or a time such as ``2026-11-20T22:00:00Z`` (UTC where it names no zone).

    Raises:
        ConfigError: it is neither.
    """
    age = _AGE.fullmatch(text)
    try:
        found = now - timedelta(**{_UNITS[age[2]]: int(age[1])}) if age else moment(text)
    except OverflowError:
        found = None
    if found is None:
        advice = "write an age such as 90s, 30m, 2h or 7d, or a time such as 2026-11-20T22:00:00Z"
        raise ConfigError(f"--since {text[:100]!r} is not a time; {advice}")
    return found


def result(text: str) -> str:
    """Read ``--result``, in whatever case.

    Raises:
        ConfigError: no record has such a result; the nearest is named.
    """
    found = _RESULTS.get(text.lower())
    if found is None:
        near = difflib.get_close_matches(text.lower(), _RESULTS, n=1, cutoff=0)
        raise ConfigError(f"--result {text[:100]!r} is not a result; did you mean {_RESULTS[near[0]]}?")
    return found


def row(record: Record) -> list[object]:
    """Return a record's cells under ``HEADERS``."""
    pod = pod_of(record)
    name = "/".join(str(part) for part in (pod.get("namespace"), pod.get("name")) if part)
    cells = [record["seq"], record["time"], record["kind"], name, record.get("container"), _gpu(record)]
    cells += [_mib(record.get("usedMiB")), _mib(record.get("quotaMiB")), record.get("result"), _pids(record)]
    return [printable(each) for each in cells]


def pod_of(record: Record) -> Mapping[str, Any]:
    """Return what the record says about its pod."""
    pod = record.get("pod")
    return pod if isinstance(pod, dict) else {}


def csv_line(cells: Sequence[object]) -> str:
    """Write cells as one line of CSV, its end included."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(each) for each in cells])
    return text.getvalue()


def csv_cells(record: Record) -> list[object]:
    """Return a record's cells under ``COLUMNS``."""
    pod = pod_of(record)
    own = {"namespace": pod.get("namespace"), "pod": pod.get("name"), "podUid": pod.get("uid")}
    shown = {*COLUMNS} - {*own, "other"} | ({"pod"} if pod else set())
    own["other"] = {name: value for name, value in record.items() if name not in shown} or None
    return [own[name] if name in own else record.get(name) for name in COLUMNS]


def printable(value: object) -> object:
    """What others chose must not steer the reader's terminal."""
    return ascii(value)[1:-1] if isinstance(value, str) and not value.isprintable() else value


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(printable(value)) if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    # Some programs take a ";" for the end of a cell, too, and would find another one behind it.
    return ";".join(f"'{part}" if part.lstrip().startswith(FORMULA) else part for part in text.split(";"))


def _among(record: Record, field: str, wanted: frozenset[str]) -> bool:
    found = record.get(field)
    return not wanted or (isinstance(found, str) and found in wanted)


def _gpu(record: Record) -> str | None:
    gpu = record.get("gpu")
    return gpu[:_SHORT_GPU] if isinstance(gpu, str) else None


def _mib(amount: Any) -> str | None:
    return None if amount is None else f"{amount}Mi"


def _pids(record: Record) -> str:
    targets = record.get("targets")
    if not isinstance(targets, list):
        return ""
    return ",".join(str(target.get("pid")) for target in targets if isinstance(target, dict))
