"""Parse the pod status file that the enforcer writes, and reject what cannot be true. Pure.

The enforcer writes it whole and renames it into place, as ``status.json`` in the directory that the pod's claim mounts
at ``contract.STATUS_PATH``, at every change and every few seconds::

    {"version": 1, "time": "2026-11-20T22:16:05.123Z", "ready": true, "waiting": "",
     "gpus": [{"uuid": "GPU-...", "model": "NVIDIA H100", "memoryMiB": 81008, "usedByOthersMiB": 20480}],
     "containers": [{"container": "model", "gpu": "GPU-...", "usedMiB": 3072, "peakMiB": 3400, "quotaMiB": 4096,
                     "limitMiB": null, "state": "Within"}],
     "messages": [{"time": "2026-11-20T22:16:05.123Z", "text": "OverQuota: container model holds 9216 MiB of ..."}]}

``ready``: the MPS daemons of the pod's GPUs take clients and its use is watched; ``waiting`` says why not. ``state``: a
word of ``enforcer.detection.types.Phase``, or ``Unknown`` while the GPU cannot be read; amounts are then null.
``limitMiB``: what it may hold where it may borrow, else null.
``peakMiB``: the most that samples saw since the pod's claim was prepared, over all restarts of the container.
``messages``: warnings and kills of this pod, oldest first; the enforcer keeps the last few. Of other pods the
file has only their total on a GPU. More keys may come. The reader drops values of another shape, cuts what is too long,
and makes text harmless.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpushare.errors import ConfigError, NewerFormatError
from gpushare.formats import POD_STATUS
from gpushare.patterns import Pattern

FILE: Final = "status.json"
MAX_BYTES: Final = 256 * 1024
MAX_ENTRIES: Final = 64
MAX_MESSAGES: Final = 200
MAX_TEXT: Final = 1024
MAX_MIB: Final = 2**43
"""8 EiB: more cannot be counted in 64 bits of bytes."""
EPOCH: Final = 1970
_NAME: Final = Pattern(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", 63)
_STATE: Final = Pattern(r"[A-Z][A-Za-z]{0,40}", 41)
_UUID: Final = Pattern(r"[A-Za-z0-9-]{1,80}", 80)
_TIME: Final = Pattern(r"[0-9T:.Z+-]{1,40}", 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Current use, peak use, quota and limit of one container on one GPU, in MiB; ``None``: not available.

    Without a limit it may not borrow.
    """

    container: str
    gpu: str
    used_mib: int | None
    quota_mib: int
    state: str
    peak_mib: int | None = None
    limit_mib: int | None = None

    @property
    def most_mib(self) -> int:
        """MiB that it may hold, borrowed memory included."""
        return max(self.quota_mib, self.limit_mib or 0)

    @property
    def borrowed_mib(self) -> int | None:
        """MiB that it holds beyond its quota where it may; ``None`` where it may not."""
        return None if self.limit_mib is None else max(0, (self.used_mib or 0) - self.quota_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of this pod, in MiB: what shares of it can have, and what all others hold (``None``: nobody can tell)."""

    uuid: str
    memory_mib: int
    others_mib: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """One line for the log: harmless, at most ``MAX_TEXT`` characters."""

    time: str
    text: str

    def __str__(self) -> str:
        return f"{self.time} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What is believed of a status file."""

    time: str = ""
    ready: bool = False
    waiting: str = ""
    gpus: tuple[Gpu, ...] = ()
    uses: tuple[Use, ...] = ()
    messages: tuple[Message, ...] = ()

    def short(self, share: float) -> bool:
        """Whether a container holds that share of its quota, or all together that share of a GPU, or more."""
        if any(use.used_mib is not None and use.used_mib >= share * use.most_mib > 0 for use in self.uses):
            return True
        return any(self._used_mib(gpu) > share * gpu.memory_mib for gpu in self.gpus)

    def _used_mib(self, gpu: Gpu) -> int:
        return (gpu.others_mib or 0) + sum(use.used_mib or 0 for use in self.uses if use.gpu == gpu.uuid)

    @property
    def written(self) -> float | None:
        """When it was written, in seconds since 1970; ``None`` where it does not say, or not with an offset."""
        try:
            when = datetime.fromisoformat(self.time)
        except ValueError:
            return None
        return when.timestamp() if when.tzinfo is not None and when.year > EPOCH else None


def parse(data: bytes) -> Status | None:
    """Read a status file; ``None`` if it is none (torn, too large, no JSON object)."""
    if len(data) > MAX_BYTES:
        return None
    try:
        raw = POD_STATUS.load(data)
    except NewerFormatError as error:
        return Status(messages=(Message("", error.message),))
    except ConfigError:
        return None
    return Status(
        time=_text(raw.get("time"), _TIME),
        ready=raw.get("ready") is True,
        waiting=harmless(_text(raw.get("waiting"), None)[: MAX_TEXT + 1]),
        gpus=tuple(_gpus(raw.get("gpus"))),
        uses=tuple(_uses(raw.get("containers"))),
        messages=tuple(_messages(raw.get("messages"))),
    )


def harmless(text: str) -> str:
    """Escape what a terminal or a log would act on (controls, line ends, directions of writing); cut what is long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 3] + "..."


def _uses(raw: object) -> Iterator[Use]:
    for entry in _objects(raw):
        name, gpu = _text(entry.get("container"), _NAME), _text(entry.get("gpu"), _UUID)
        quota = _amount(entry.get("quotaMiB"))
        if name and gpu and quota is not None:
            state = _text(entry.get("state"), _STATE) or "Unknown"
            used, peak = _amount(entry.get("usedMiB")), _amount(entry.get("peakMiB"))
            limit = _amount(entry.get("limitMiB"))
            yield Use(
                container=name, gpu=gpu, used_mib=used, peak_mib=peak, quota_mib=quota, state=state, limit_mib=limit
            )


def _gpus(raw: object) -> Iterator[Gpu]:
    for entry in _objects(raw):
        uuid, memory = _text(entry.get("uuid"), _UUID), _amount(entry.get("memoryMiB"))
        if uuid and memory is not None:
            yield Gpu(uuid=uuid, memory_mib=memory, others_mib=_amount(entry.get("usedByOthersMiB")))


def _objects(raw: object) -> Iterator[dict[str, Any]]:
    entries = raw[:MAX_ENTRIES] if isinstance(raw, list) else []
    yield from (entry for entry in entries if isinstance(entry, dict))


def _text(value: Any, shape: Pattern[str] | None) -> str:
    """A text of that shape, else an empty one."""
    return value if isinstance(value, str) and (shape is None or shape.fullmatch(value)) else ""


def _amount(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_MIB else None


def _messages(raw: object) -> Iterator[Message]:
    entries = raw[-MAX_MESSAGES:] if isinstance(raw, list) else []
    for entry in entries:
        time, text = (entry.get("time"), entry.get("text")) if isinstance(entry, dict) else (None, None)
        if isinstance(time, str) and isinstance(text, str) and _TIME.fullmatch(time):
            yield Message(time, harmless(text[: MAX_TEXT + 1]))
