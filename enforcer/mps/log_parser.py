"""Reading the logs of MPS's control daemon and servers: bytes in, what they say out. Pure.

A tenant can write into the pipe that a daemon's log goes through, so what stands there is hearsay: it is reported, cut
and escaped, and nothing is ever done because of it. Lines as in NVIDIA's documentation and as 535.309.01 and
580.159.04 write them; the latter writes the answer to each command as well, such as pids::

    [2026-11-21 10:00:00.123 Control 4711] Server 4712 exited with status 1
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
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


_KNOWN: Final = tuple(
    (severity, Pattern(pattern, MAX_LINE))
    for severity, pattern in (
        (Severity.TROUBLE, r"Volta MPS: Server is handling a fatal GPU error\."),
        (Severity.TROUBLE, r"Client \{PID: \d+, Context ID: \d+\} on the error-trigging process \d+ to be torn down"),
        # Whose they are stands behind it, or on lines of their own, which look like answers to commands.
        (Severity.TROUBLE, r"The following clients have a sticky error set:.*"),
        (Severity.CHANGE, r"Server \d+ exited with status 0"),
        (Severity.TROUBLE, r"Server \d+ exited with status -?\d+"),
        (Severity.CHANGE, r"Starting new server \d+ for user \d+"),
        (Severity.CHANGE, r"NEW SERVER \d+: Ready"),
        (Severity.CHANGE, r"(Volta MPS: )?(Creat|Destroy)(ing|e)? server context on device \d.*"),
        (Severity.ROUTINE, r"Cmd:\s*(get_\w+|ps|lspart|device_query|server list|namespace list|client list)\b.*"),
        (Severity.CHANGE, r"Cmd:.*"),
    )
)
"""Lines that matter, and commands that change nothing; all others are routine."""
_HEAD: Final = Pattern(rb"(?s)\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w{1,32} +\d{1,10})\] ?(.*)", MAX_LINE)
_ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), ord("\\"), *range(0x7F, 0x100))}


@dataclass(frozen=True, slots=True)
class Line:
    """One line. ``at`` and ``by`` are its own word for when, and for which process; empty where it has none."""

    severity: Severity
    text: str
    at: str = ""
    by: str = ""


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
        return Line(Severity.ROUTINE, safe(raw))
    text = safe(head[3])
    severity = next((severity for severity, pattern in _KNOWN if pattern.fullmatch(text)), Severity.ROUTINE)
    return Line(severity, text, head[1].decode("ascii"), head[2].decode("ascii"))


def safe(raw: bytes) -> str:
    """Write bytes as printable ASCII, everything else escaped, and cut."""
    text = raw[:MAX_LINE].decode("latin-1").translate(_ESCAPED)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def most_severe(lines: Sequence[Line], most: int) -> tuple[list[Line], Mapping[Severity, int]]:
    """Pick what is passed on: the gravest, in their order, and how many of which severity are not."""
    graver = sorted(range(len(lines)), key=lambda number: (-lines[number].severity, number))
    taken, left = sorted(graver[:most]), graver[most:]
    return [lines[number] for number in taken], Counter(lines[number].severity for number in left)


def parsed(raw: Iterable[bytes]) -> list[Line]:
    """Read lines, without the empty ones."""
    return [line for each in raw if (line := read(each)) is not None]
