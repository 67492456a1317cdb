"""What people see: colours where they are wanted, tables without borders, symbols with an ASCII stand-in; exit codes.

Colours follow https://no-color.org: ``NO_COLOR`` set to anything but the empty string turns them off, and so does
output that is no terminal.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TextIO

FINE: Final = 0
NOT_FINE: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130


NOT_AVAILABLE: Final = "N/A"
SYMBOLS: Final = "\u221a\u203c\u00d7"
"""Fine, warning, wrong: as ``linkerd check`` shows them."""
_RESET: Final = "\x1b[0m"


class Colour(StrEnum):
    """SGR codes of the few colours used."""

    BOLD = "\x1b[1m"
    RED = "\x1b[31m"
    GREEN = "\x1b[32m"
    YELLOW = "\x1b[33m"
    CYAN = "\x1b[36m"


@dataclass(frozen=True, slots=True)
class Terminal:
    """A stream and what it can show."""

    stream: TextIO
    colour: bool
    unicode: bool
    width: int | None = None
    """Columns; ``None`` where the stream is not a terminal."""

    @classmethod
    def of(cls, stream: TextIO | None = None, colour: str = "auto") -> "Terminal":
        """Look at the stream (standard output by default). ``colour`` is ``auto``, ``always`` or ``never``."""
        target = sys.stdout if stream is None else stream
        wanted = colour == "always" or (colour == "auto" and _likes_colour(target))
        width = shutil.get_terminal_size().columns if target.isatty() else None
        return cls(target, wanted, "utf" in (target.encoding or "").lower(), width)

    def paint(self, text: str, colour: Colour) -> str:
        """Return the text in that colour, or as it is where colours are not wanted."""
        return f"{colour}{text}{_RESET}" if self.colour and text else text

    def say(self, text: str = "") -> None:
        """Write one line at once."""
        print(text, file=self.stream, flush=True)


def _likes_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lay out rows under uppercase headers, two spaces between columns; an absent value is ``N/A``, never blank."""
    lines = [list(headers), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def show(output: str, data: Any, lines: Iterable[str]) -> None:
    """Print what a verb found: as JSON where ``--output`` says so, else as lines for people."""
    print(json.dumps(data, indent=2) if output == "json" else "\n".join(lines))


def warn(text: str) -> None:
    """Write a warning to standard error."""
    print(f"gpu-share: {text}", file=sys.stderr)


def cell(value: object) -> str:
    """Write one value of a table."""
    return NOT_AVAILABLE if value is None or value == "" else str(value)


def diff(before: str, after: str, names: tuple[str, str], terminal: Terminal, context: int = 3) -> list[str]:
    """Return a unified diff, coloured as the terminal wants it, without line ends."""
    import difflib  # noqa: PLC0415 - few commands need it

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), names[0], names[1], lineterm="", n=context)
    return [_diff_line(line, terminal) for line in lines]


def _diff_line(line: str, terminal: Terminal) -> str:
    if line.startswith(("---", "+++")):
        return terminal.paint(line, Colour.BOLD)
    colour = {"+": Colour.GREEN, "-": Colour.RED, "@": Colour.CYAN}.get(line[:1])
    return terminal.paint(line, colour) if colour else line
