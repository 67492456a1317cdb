"""What the enforcer says about its node: ``status.json`` in its state directory, read for ``top`` and ``explain``.

The enforcer writes it whole after each round and renames it into place::

    {"version": 1, "time": "2026-11-20T22:16:05.123Z", "node": "gpu-7", "state": "Watching",
     "gpus": [{"uuid": "GPU-...", "index": 0, "model": "NVIDIA A100-SXM4-16GB", "totalMiB": 15872, "usedMiB": 12288,
               "quotaMiB": 8192, "state": "WithinQuota",
               "containers": [{"namespace": "asr", "pod": "tts-0", "podUid": "...", "container": "model",
                               "quotaMiB": 4096, "ceilingMiB": 4352, "usedMiB": 9216, "state": "OverQuota",
                               "processes": [{"pid": 31337, "usedMiB": 9216}]}],
               "others": [{"pid": 7, "usedMiB": 100}]}]}

``state`` is a word of ``Reason``. What is missing or of another shape is shown as not available, never guessed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gpushare.errors import ConfigError, GpuShareError
from gpushare.reasons import Reason

FILE: Final = "status.json"
NEAR: Final = 0.9
"""Share of its quota from which a container is shown as near it."""
_SHOWN: Final = {Reason.OVER_QUOTA: "over", Reason.LIMIT_EXCEEDED: "over", Reason.KILLED: "killed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One container on one GPU. Memory in MiB; ``None`` is not available. ``pids`` are its processes there."""

    namespace: str
    pod: str
    container: str
    used_mib: int | None
    quota_mib: int | None
    state: str
    pids: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        """Return ``ok``, ``near``, ``over``, ``killed``, or the enforcer's own word where it is another."""
        if self.state in {Reason.WITHIN_QUOTA, Reason.BACK_UNDER_QUOTA}:
            near = self.used_mib is not None and self.quota_mib and self.used_mib >= NEAR * self.quota_mib
            return "near" if near else "ok"
        return {str(reason): word for reason, word in _SHOWN.items()}.get(self.state, self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU. ``limit_mib`` is the sum of the quotas on it, ``clients`` the processes."""

    uuid: str
    index: int | None
    model: str
    used_mib: int | None
    limit_mib: int | None
    total_mib: int | None
    clients: int | None
    state: str
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A node at one moment; ``raw`` is what was read."""

    node: str
    time: str
    gpus: tuple[GpuUse, ...]
    raw: Mapping[str, Any]

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
        GpuShareError: it is no status.
    """
    file = folder / FILE
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file}: {error.strerror}; run this on a node with the enforcer, or give --state-dir"
        ) from None
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        raise GpuShareError(f"{file} is no status of the enforcer")
    return NodeStatus(node=_text(raw, "node"), time=_text(raw, "time"), gpus=tuple(_gpus(raw)), raw=raw)


def now() -> datetime:
    """Return the wall clock, in UTC."""
    return datetime.now(UTC)


def _gpus(raw: Mapping[str, Any]) -> Iterator[GpuUse]:
    for gpu in _objects(raw, "gpus"):
        uses = tuple(_uses(gpu))
        clients = sum(len(use.pids) for use in uses) + len(list(_objects(gpu, "others")))
        yield GpuUse(
            uuid=_text(gpu, "uuid"),
            index=_number(gpu, "index"),
            model=_text(gpu, "model"),
            used_mib=_number(gpu, "usedMiB"),
            limit_mib=_number(gpu, "quotaMiB"),
            total_mib=_number(gpu, "totalMiB"),
            clients=clients,
            state=_text(gpu, "state"),
            uses=uses,
        )


def _uses(gpu: Mapping[str, Any]) -> Iterator[Use]:
    for one in _objects(gpu, "containers"):
        pids = tuple(pid for process in _objects(one, "processes") if (pid := _number(process, "pid")) is not None)
        yield Use(
            namespace=_text(one, "namespace"),
            pod=_text(one, "pod"),
            container=_text(one, "container"),
            used_mib=_number(one, "usedMiB"),
            quota_mib=_number(one, "quotaMiB"),
            state=_text(one, "state"),
            pids=pids,
        )


def _objects(value: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    found = value.get(key)
    yield from (item for item in found if isinstance(item, dict)) if isinstance(found, list) else ()


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return "".join(character for character in found if character.isprintable()) if isinstance(found, str) else ""


def _number(value: Mapping[str, Any], key: str) -> int | None:
    found = value.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
