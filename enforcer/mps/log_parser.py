"""Reading the logs of MPS's control daemon and servers: bytes in, what they say out. Pure.

A tenant can write into the pipe that a daemon's log goes through, so what stands there is hearsay: it is reported, cut
and escaped, and nothing is ever done because of it. Lines as in NVIDIA's documentation and as 535.309.01 and
580.159.04 write them; the latter writes the answer to each command as well, such as pids::

    [2026-11-21 10:00:00.123 Control 4711] Server 4712 exited with status 1
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from gpushare.patterns import Pattern

MAX_LINE: Final = 2048
"""Bytes of a line that are read; what is beyond is dropped."""
SHOWN: Final = 300
"""Characters of a message that are passed on."""


class Severity(IntEnum):
    """How much a line matters."""

    ROUTINE = 0
    CHANGE = 1
    TROUBLE = 2


class LogPattern(StrEnum):
    """What a line is about."""

    FATAL = "fatal GPU error"
    STICKY = "clients with a sticky error"
    FAILED = "server failed"
    STARTING = "server starts"
    READY = "server ready"
    ENDED = "server ended"
    CONTEXT = "server context"
    CHANGING = "changing command"
    ASKING = "asking command"
    CAME = "client came"
    STATE = "client state"
    WENT = "client went"
    CONNECTION = "connection"
    UNKNOWN = "unknown"


_WEIGHTS: Final[Mapping[LogPattern, Severity]] = {
    **dict.fromkeys((LogPattern.FATAL, LogPattern.STICKY, LogPattern.FAILED), Severity.TROUBLE),
    **dict.fromkeys(
        (LogPattern.STARTING, LogPattern.READY, LogPattern.ENDED, LogPattern.CONTEXT, LogPattern.CHANGING),
        Severity.CHANGE,
    ),
}
_KNOWN: Final = tuple(
    (kind, Pattern(pattern, MAX_LINE))
    for kind, pattern in (
        (LogPattern.FATAL, r"Volta MPS: Server is handling a fatal GPU error\."),
        (LogPattern.FATAL, r"Client \{PID: \d+, Context ID: \d+\} on the error-trigging process \d+ to be torn down"),
        # Whose they are stands behind it, or on lines of their own, which look like answers to commands.
        (LogPattern.STICKY, r"The following clients have a sticky error set:.*"),
        (LogPattern.ENDED, r"Server \d+ exited with status 0"),
        (LogPattern.FAILED, r"Server \d+ exited with status -?\d+"),
        (LogPattern.STARTING, r"Starting new server \d+ for user \d+"),
        (LogPattern.READY, r"NEW SERVER \d+: Ready"),
        (LogPattern.CONTEXT, r"(Volta MPS: )?(Creat|Destroy)(ing|e)? server context on device \d.*"),
        (LogPattern.ASKING, r"Cmd:\s*(get_\w+|ps|lspart|device_query|server list|namespace list|client list)\b.*"),
        (LogPattern.CHANGING, r"Cmd:.*"),
        (LogPattern.CAME, r"NEW CLIENT \d+ from user \d+: .*"),
        (LogPattern.STATE, r"(Volta MPS: )?status of client \{\d+, \d+\} is \w+"),
        (LogPattern.WENT, r"(Volta MPS: )?Client \{\d+, \d+\} exit"),
        (LogPattern.CONNECTION, r"(Accepting connection\.\.\.|NEW UI|UI closed)"),
    )
)
_HEAD: Final = Pattern(rb"(?s)\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w{1,32} +\d{1,10})\] ?(.*)", MAX_LINE)
_ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), ord("\\"), *range(0x7F, 0x100))}


@dataclass(frozen=True, slots=True)
class Line:
    """One line. ``at`` and ``by`` are its own word for when, and for which process; empty where it has none."""

    pattern: LogPattern
    text: str
    at: str = ""
    by: str = ""

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return severity_of(self.pattern)


def severity_of(kind: LogPattern) -> Severity:
    """How much lines of this kind matter."""
    return _WEIGHTS.get(kind, Severity.ROUTINE)


def split(half: bytes, data: bytes) -> tuple[list[bytes], bytes]:
    """Cut what was read into whole lines of at most ``MAX_LINE`` bytes, and the beginning of the next one.

    Args:
        half: the beginning that the last call returned.
        data: what was read since.
    """
    *whole, rest = (half + data).split(b"\n")
    return [line[:MAX_LINE] for line in whole], rest[:MAX_LINE]


def read(raw: bytes) -> Line | None:
    """Read a line without its end; ``None`` where nothing stands in it."""
    # A writer that does not append leaves zeros where a file was cut before it.
    raw = raw.strip(b"\0\r \t")
    if not raw:
        return None
    head = _HEAD.fullmatch(raw)
    if head is None:
        return Line(LogPattern.UNKNOWN, safe(raw))
    text = safe(head[3])
    return Line(_pattern(text), text, head[1].decode("ascii"), head[2].decode("ascii"))


def safe(raw: bytes) -> str:
    """Write bytes as printable ASCII, everything else escaped, and cut."""
    text = raw[:MAX_LINE].decode("latin-1").translate(_ESCAPED)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def most_severe(lines: Sequence[Line], most: int) -> tuple[list[Line], Mapping[LogPattern, int]]:
    """Pick what is passed on: the gravest, in their order, and how many of which kind are not."""
    graver = sorted(range(len(lines)), key=lambda number: (-lines[number].severity, number))
    taken, left = sorted(graver[:most]), graver[most:]
    return [lines[number] for number in taken], Counter(lines[number].pattern for number in left)


def parsed(raw: Iterable[bytes]) -> list[Line]:
    """Read lines, without the empty ones."""
    return [line for each in raw if (line := read(each)) is not None]


def _pattern(text: str) -> LogPattern:
    return next((kind for kind, pattern in _KNOWN if pattern.fullmatch(text)), LogPattern.UNKNOWN)
