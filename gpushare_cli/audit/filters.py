"""Records of an audit log as people ask for them: which ones, as rows of a table. Pure.

A chain that holds may still have been written by anybody: nothing in a record is taken to have its shape, and what
others chose does not steer the reader's terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from gpushare.errors import ConfigError
from gpushare.patterns import Pattern
from gpushare.raw_objects import moment

Record = Mapping[str, Any]
HEADERS: Final = ("SEQ", "TIME", "KIND", "POD", "CONTAINER", "GPU", "USED", "QUOTA", "RESULT", "PIDS")
NODE: Final = "NODE"
_SHORT_GPU: Final = 12
_AGE: Final = Pattern(r"(\d{1,6})([smhd])", 7)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """What of a log is asked for; what is ``None`` asks nothing."""

    namespace: str | None = None
    pod: str | None = None
    node: str | None = None
    kind: str | None = None
    result: str | None = None
    since: datetime | None = None
    """A record whose time cannot be read is shown all the same: nobody hides behind a label."""

    def matches(self, record: Record) -> bool:
        """Tell whether a record is asked for."""
        pod = pod_of(record)
        asked = (self.namespace, self.pod, self.node, self.kind, self.result)
        found = (pod.get("namespace"), pod.get("name"), *(record.get(key) for key in ("node", "kind", "result")))
        when = moment(record.get("time"))
        recent = self.since is None or when is None or when >= self.since
        return recent and all(one in (None, other) for one, other in zip(asked, found, strict=True))


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


def printable(value: object) -> object:
    """What others chose must not steer the reader's terminal."""
    return ascii(value)[1:-1] if isinstance(value, str) and not value.isprintable() else value


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
