"""What the enforcer says about its node: ``status.json`` in its state directory, read for ``top`` and ``explain``.

``enforcer/status/node_status.py`` has its shape. What is missing or of another shape here is shown as not
available, never guessed; texts are made harmless for a terminal.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from enforcer.audit.record import Kind
from enforcer.audit.segments import FOLDER, segments
from enforcer.detection.types import Phase
from enforcer.status.node_status import BLIND, NAME
from gpushare.errors import ConfigError, GpuShareError
from gpushare.formats import NODE_STATUS
from gpushare.raw_objects import mapping, objects, text
from gpushare.reasons import Reason
from gpushare_cli.words import clean

NEAR: Final = 0.9
"""Share of its quota from which a container is shown as near it."""
OK: Final = "ok"
KILLED: Final = "killed"
MAX_BYTES: Final = 64 * 1024 * 1024
STALE_SECONDS: Final = 10.0
"""More has no status: that of a full node is less than one."""
LAST_BYTES: Final = 1024 * 1024
"""So much of the audit log is looked at: the last several hundred records."""
WITH: Final = "with "
"""Begins the step of a process that ended with another one, whose pid follows."""
_SHOWN: Final[Mapping[str, str]] = {
    Phase.NOT_STARTED: "starting",
    Phase.OVER: "over",
    Phase.WARNED: "over",
    Phase.POSTPONED: "over",
    Phase.KILLING: "killing",
    Phase.COOLING_DOWN: KILLED,
    BLIND: "blind",
}
"""Words of the enforcer's, as a table shows them."""


def state_word(state: str, used_mib: int | None, quota_mib: int | None) -> str:
    """Return ``ok``, ``near``, ``over``, ... for a state of the enforcer's, or its own word where it is another."""
    if state != Phase.WITHIN:
        return _SHOWN.get(state, state)
    return "near" if used_mib is not None and quota_mib and used_mib >= NEAR * quota_mib else OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One container on one GPU. Memory in MiB; ``None`` is not available.

    ``processes`` are those it has there, by pid, with what each holds; the largest first.
    """

    namespace: str
    pod: str
    container: str
    gpu: str
    used_mib: int | None
    quota_mib: int | None
    state: str
    sentence: str
    processes: tuple[tuple[int, int | None], ...] = ()
    reserved_mib: int | None = None
    limit: str = ""
    """Whether its limit is in force, and what says so; empty where that is not known."""
    killed: str = ""
    """When and how it was ended, by the audit log; empty where it was not."""
    failed: tuple[str, ...] = ()
    """Why it likely failed lately because of GPU memory, and which processes used how much then, one line each."""
    kill_in: float | None = None
    """Seconds until it is killed, when the status was written; ``None`` where no kill is due."""
    utilization: int | None = None
    """Percent of the last seconds in which it ran kernels there; ``None`` where unknown, as under MPS."""
    peak_mib: int | None = None
    """The most that samples saw since its pod's claim was prepared."""
    mps_clients: int | None = None
    """Its processes that are clients of MPS there; ``None`` where it is not shared through MPS."""
    limit_mib: int | None = None
    """What it may hold where it may borrow; ``borrowed_mib`` of that it has borrowed."""
    borrowed_mib: int | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes there."""
        return tuple(pid for pid, _ in self.processes)

    @property
    def reserved(self) -> int | None:
        """MiB that were reserved, where that is not the quota."""
        return None if self.reserved_mib == self.quota_mib else self.reserved_mib

    @property
    def shown(self) -> str:
        """Return ``ok``, ``near``, ``over``, ``killed``, ... or the enforcer's own word where it is another."""
        if self.killed and not self.used_mib:
            return KILLED
        return state_word(self.state, self.used_mib, self.limit_mib or self.quota_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU. ``limit_mib`` is the sum of quotas on it, ``clients`` its processes; ``blind`` is why, where it is."""

    uuid: str
    index: int | None
    model: str
    used_mib: int | None
    limit_mib: int
    total_mib: int | None
    clients: int | None
    blind: str
    uses: tuple[Use, ...]
    mode: str = ""
    """How it is shared; empty where it is not, or that is not known."""
    unaccounted_mib: int | None = None
    """MiB in use that nobody is counted for."""
    unhealthy: str = ""
    """Why it has a taint, where it has one."""
    contended: str = ""
    """Who else offers it, where somebody does."""
    utilization: int | None = None
    """Percent of the last seconds in which processes ran kernels on it; ``None``: the driver does not report it."""

    @property
    def reserved_mib(self) -> int:
        """MiB that the containers on it reserved."""
        return sum((use.quota_mib if use.reserved_mib is None else use.reserved_mib) or 0 for use in self.uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node at one moment; ``raw`` is what was read."""

    node: str
    time: str
    enforcing: bool
    problems: tuple[str, ...]
    gpus: tuple[GpuUse, ...]
    raw: Mapping[str, Any]
    breaker_open: bool = False

    def age(self, now: datetime) -> float | None:
        """Return the seconds since it was written; ``None`` where it does not say when."""
        try:
            return (now - datetime.fromisoformat(self.time)).total_seconds()
        except (ValueError, TypeError):
            return None


def load(folder: Path) -> NodeStatus:
    """Read the enforcer's status.

    Raises:
        ConfigError: there is no such file, or it may not be read.
        GpuShareError: it is not a status.
    """
    file = folder / NAME
    try:
        NODE_STATUS.check(data := _end_of(file, MAX_BYTES))
        raw = json.loads(data.decode("utf-8"))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error.message}") from None
    except OSError as error:
        hint = "run this on a node with the enforcer (--state DIR), or see gpu-share top -A, or top -n NAMESPACE"
        raise ConfigError(f"{file}: {error.strerror}; {hint}") from None
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        raise GpuShareError(f"{file} is not the JSON that the enforcer writes; give its state directory with --state")
    return read(raw, endings(folder / FOLDER))


def endings(folder: Path) -> dict[str, str]:
    """Return when and how containers were ended, by container id, from the end of the audit log. It is not verified."""
    try:
        last = segments(folder)[-1:]
        end = b"".join(_end_of(file, LAST_BYTES) for file in last)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in end.splitlines():
        record = _json(line)
        if record.get("kind") == Kind.OUTCOME and record.get("result") == Reason.KILLED:
            pids = ", ".join(
                f"process {_number(one, 'pid')} ({_steps(_text(one, 'steps'))})" for one in objects(record, "targets")
            )
            where = f"record {_number(record, 'seq')} of the audit log"
            found[_text(record, "containerId")] = f"at {_text(record, 'time')}: {pids}; {where}"
    return found


def _steps(recorded: str) -> str:
    """Describe how a process was ended; one that ended with another has the step ``with <pid>``."""
    steps = (
        f"ended with process {each.removeprefix(WITH)}" if each.startswith(WITH) else each
        for each in recorded.split(",")
    )
    return ", then ".join(steps)


def _end_of(file: Path, most: int) -> bytes:
    """The last bytes of a plain file; of no other, which might have no end. Raises ``OSError``."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        opened.seek(max(0, found.st_size - most))
        return opened.read(most)


def _json(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # the first line may be cut, and edits are for audit verify to find
        return {}
    return found if isinstance(found, dict) else {}


def read(raw: Mapping[str, Any], ended: Mapping[str, str]) -> NodeStatus:
    """Read a status from JSON data of any shape; ``ended`` as ``endings`` returns it."""
    uses = tuple(_uses(raw, ended))
    problems = raw.get("problems")
    return NodeStatus(**_plain(
        NodeStatus, raw,
        enforcing=raw.get("enforcing") is True,
        problems=tuple(clean(one) for one in problems if isinstance(one, str)) if isinstance(problems, list) else (),
        gpus=tuple(_gpu(raw, gpu, uses) for gpu in objects(raw, "gpus")),
        raw=raw,
        breaker_open=mapping(raw, "kills").get("breakerOpen") is True,
    ))  # fmt: skip


def now() -> datetime:
    """Return the wall clock, in UTC."""
    return datetime.now(UTC)


def stale(status: NodeStatus) -> str:
    """Return a sentence when the status is older than a running enforcer lets it get; empty when it is fresh."""
    age = status.age(now())
    if age is None:
        return "the status does not say when it was written, so it may be old"
    return f"this status is {age:.0f} s old: the enforcer does not run" if age > STALE_SECONDS else ""


def _gpu(raw: Mapping[str, Any], gpu: Mapping[str, Any], uses: tuple[Use, ...]) -> GpuUse:
    uuid = _text(gpu, "uuid")
    mine = tuple(use for use in uses if use.gpu == uuid)
    used, memory, reserved = (_number(gpu, key) for key in ("usedMib", "memoryMib", "reservedMib"))
    strangers = sum(1 for one in objects(raw, "strangers") if _text(one, "gpu") == uuid)
    return GpuUse(**_plain(
        GpuUse, gpu,
        model=" ".join(filter(None, (_text(gpu, "model"), _text(gpu, "profile")))),
        limit_mib=sum(use.quota_mib or 0 for use in mine),
        total_mib=None if memory is None else memory - (reserved or 0),
        clients=None if used is None else sum(len(use.pids) for use in mine) + strangers,
        uses=mine,
        utilization=_number(gpu, "utilizationPercent"),
    ))  # fmt: skip


def _uses(raw: Mapping[str, Any], ended: Mapping[str, str]) -> Iterator[Use]:
    for one in objects(raw, "containers"):
        yield Use(**_plain(
            Use, one,
            processes=tuple(_processes(one)),
            limit=_limit(one.get("limit")),
            killed=ended.get(_text(one, "containerId") or "-", ""),
            failed=tuple(_failed(raw, one)),
            utilization=_number(one, "utilizationPercent"),
        ))  # fmt: skip


def _plain(kind: Any, value: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return ``more``, and each other field of a dataclass that is a text or a number, from the key of its name."""
    found = [each for each in fields(kind) if each.type in _READERS and each.name not in more]
    return {each.name: _READERS[each.type](value, _key(each.name)) for each in found} | more


def _key(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _processes(container: Mapping[str, Any]) -> list[tuple[int, int | None]]:
    """A container's processes with what each holds, MiB, the largest first."""
    rows = [(_number(one, "pid"), _number(one, "usedMib")) for one in objects(container, "processes")]
    return sorted(((pid, used) for pid, used in rows if pid is not None), key=lambda row: (-(row[1] or 0), row[0]))


def _limit(found: object) -> str:
    if not isinstance(found, dict) or not _text(found, "state"):
        return ""
    return f"{_text(found, 'state')} ({_text(found, 'backend')}): {_text(found, 'sentence')}"


def _failed(raw: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    same = ("podUid", "container", "gpu")
    for one in objects(raw, "failures"):
        if all(_text(one, key) == _text(container, key) for key in same):
            found = one.get("holders")
            users = ", ".join(clean(str(each)) for each in found) if isinstance(found, list) else "not known"
            yield f"{_text(one, 'reason')}: {_text(one, 'sentence')}; GPU memory in use at that moment: {users}"


def _text(value: Mapping[str, Any], key: str) -> str:
    return clean(text(value, key))


def _number(value: Mapping[str, Any], key: str) -> int | None:
    found = value.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _seconds(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


_READERS: Final[Mapping[Any, Callable[[Mapping[str, Any], str], object]]] = {
    str: _text, int | None: _number, float | None: _seconds,
}  # fmt: skip
"""What reads a field of a type."""
