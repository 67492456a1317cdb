"""The status file of a pod: what the node agent says about it, and what is believed of that.

The agent writes it whole and renames it into place, as ``status.json`` in the directory that the pod's claim mounts at
``contract.STATUS_PATH``::

    {"ready": true,
     "containers": {"model": {"usedMiB": 3072, "quotaMiB": 4096, "state": "WithinQuota"}},
     "messages": [{"time": "2026-11-20T22:16:05Z", "text": "container model uses 9216 MiB of 4096 MiB; killed in 5 s"}]}

``ready``: the containers' MPS daemon answers and their limits are in force. ``state``: a word of ``Reason``.
``messages``: warnings and kills of this pod, oldest first; the agent keeps the last few. More keys may come.

The reader believes nothing: what has another shape is left out, what is too much is cut, and text is made harmless.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

FILE: Final = "status.json"
MAX_BYTES: Final = 256 * 1024
MAX_CONTAINERS: Final = 64
MAX_MESSAGES: Final = 200
MAX_TEXT: Final = 1024
MAX_MIB: Final = 2**43
"""8 EiB: more cannot be counted in 64 bits of bytes."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_STATE: Final = re.compile(r"[A-Z][A-Za-z]{0,40}", re.ASCII)
_TIME: Final = re.compile(r"[0-9T:.Z+-]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one container holds and may hold, in MiB."""

    container: str
    used_mib: int
    quota_mib: int
    state: str


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

    ready: bool = False
    uses: tuple[Use, ...] = ()
    messages: tuple[Message, ...] = ()


def parse(data: bytes) -> Status | None:
    """Read a status file; ``None`` if it is none (torn, too large, no JSON object)."""
    if len(data) > MAX_BYTES:
        return None
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    return Status(
        ready=raw.get("ready") is True,
        uses=tuple(_uses(raw.get("containers"))),
        messages=tuple(_messages(raw.get("messages"))),
    )


def harmless(text: str) -> str:
    """Escape what a terminal or a log would act on (controls, line ends, directions of writing); cut what is long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 3] + "..."


def _uses(raw: object) -> Iterator[Use]:
    entries = list(raw.items())[:MAX_CONTAINERS] if isinstance(raw, dict) else []
    for name, entry in entries:
        if not (_NAME.fullmatch(name) and isinstance(entry, dict)):
            continue
        used, quota, state = _amount(entry.get("usedMiB")), _amount(entry.get("quotaMiB")), entry.get("state")
        if used is not None and quota is not None:
            known = state if isinstance(state, str) and _STATE.fullmatch(state) else "Unknown"
            yield Use(container=name, used_mib=used, quota_mib=quota, state=known)


def _amount(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_MIB else None


def _messages(raw: object) -> Iterator[Message]:
    entries = raw[-MAX_MESSAGES:] if isinstance(raw, list) else []
    for entry in entries:
        time, text = (entry.get("time"), entry.get("text")) if isinstance(entry, dict) else (None, None)
        if isinstance(time, str) and isinstance(text, str) and _TIME.fullmatch(time):
            yield Message(time, harmless(text[: MAX_TEXT + 1]))
