"""What ``gpu-share top`` shows at one moment: tables that fit the terminal, sentences, and JSON.

A watch shows it again and again in place, on the terminal's other screen: line over line, so that nothing flickers.
"""

import math
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from gpushare.errors import ConfigError
from gpushare.patterns import Pattern
from gpushare_cli.terminal import Colour, Terminal, cell, table

COLOURS: Final = {
    "ok": Colour.GREEN,
    "near": Colour.YELLOW,
    "over": Colour.RED,
    "killing": Colour.RED,
    "killed": Colour.RED,
    "blind": Colour.RED,
}
ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""The other screen, without a cursor: what was on the terminal comes back with ``LEAVE``."""
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
REST_OF_LINE: Final = "\x1b[K"
REST_OF_SCREEN: Final = "\x1b[J"
LEAST: Final = 8
"""Characters that stay of a name that is shortened."""
_NUMBER: Final = Pattern(r"(\d{1,15}(?:\.\d{1,3})?).*", 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One table; a colour goes to the last word of a row.

    ``drop`` names the columns that a narrow terminal goes without, the first first, and ``shorten`` one of names.
    A column of ``optional`` is left out where no row has a value for it.
    """

    headers: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    drop: tuple[str, ...] = ()
    shorten: str = ""
    optional: tuple[str, ...] = ()

    def sorted_by(self, column: str) -> "Grid":
        """Return it sorted by a column: the largest number first, names from A to Z, what is not known last."""
        at = self.headers.index(column)
        return replace(self, rows=sorted(self.rows, key=lambda row: _order(row[at])))

    def lines(self, width: int | None) -> list[str]:
        """Lay it out within so many columns, or as wide as it is."""
        unknown = [each for each in self.optional if all(row[self.headers.index(each)] is None for row in self.rows)]
        grid, left = self.without(*unknown), list(self.drop)
        while width is not None and left and grid.width > width:
            grid = grid.without(left.pop(0))
        if width is not None and grid.width > width:
            grid = grid.shortened(grid.width - width)
        shown = table(grid.headers, grid.rows)
        return shown if width is None else [line[:width] for line in shown]

    @property
    def width(self) -> int:
        """The columns that it takes."""
        return max(map(len, table(self.headers, self.rows)))

    def without(self, *columns: str) -> "Grid":
        """Return it without these columns."""
        kept = [at for at, header in enumerate(self.headers) if header not in columns]
        rows = [tuple(row[at] for at in kept) for row in self.rows]
        return replace(self, headers=tuple(self.headers[at] for at in kept), rows=rows)

    def shortened(self, much: int) -> "Grid":
        """Return it with that many characters less in the column of names, cut in their middle."""
        if self.shorten not in self.headers:
            return self
        at = self.headers.index(self.shorten)
        room = max([LEAST, *(len(cell(row[at])) for row in self.rows)]) - much
        rows = [(*row[:at], _cut(cell(row[at]), max(room, LEAST)), *row[at + 1 :]) for row in self.rows]
        return replace(self, rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All of it: tables, sentences below them, data for programs; ``problem`` is why it is not whole or not current."""

    grids: tuple[Grid, ...]
    notices: tuple[str, ...]
    data: Any
    problem: str = ""

    def lines(self, terminal: Terminal, sort: str = "") -> list[str]:
        """Lay it out for a terminal, sorted by a column.

        Raises:
            ConfigError: no table has that column.
        """
        grids = [each for each in self.grids if each.rows]
        if sort and grids and not any(sort in each.headers for each in grids):
            names = ", ".join(dict.fromkeys(header.lower() for each in self.grids for header in each.headers))
            raise ConfigError(f"--sort {sort.lower()}: these tables have no such column; write one of {names}")
        shown: list[str] = []
        for grid in grids:
            ordered = grid.sorted_by(sort) if sort in grid.headers else grid
            shown += [*([""] if shown else []), *ordered.lines(terminal.width)]
        return [coloured(line, terminal) for line in (*shown, *_wrapped(self.notices, terminal.width))]


def _wrapped(lines: Iterable[str], width: int | None) -> Iterator[str]:
    """Break sentences between words; a watch counts the lines that it writes."""
    for line in lines:
        yield from [line] if width is None else textwrap.wrap(line, width, subsequent_indent="  "[: width - 1])


def coloured(line: str, terminal: Terminal) -> str:
    """Colour the state that a line ends with."""
    head, _, state = line.rpartition(" ")
    colour = COLOURS.get(state)
    return f"{head} {terminal.paint(state, colour)}" if colour else line


def _order(value: object) -> tuple[int, float, str]:
    """Return what sorts a cell; a number may have its unit behind it."""
    shown = "" if value is None else str(value)
    if not shown.strip("-"):
        return 2, math.inf, ""
    found = _NUMBER.fullmatch(shown)
    return (1, 0.0, shown) if found is None else (0, -float(found.group(1)), shown)


def _cut(name: str, room: int) -> str:
    """Cut a name in its middle: of pods both ends tell them apart."""
    if len(name) <= room:
        return name
    head = (room - 2) // 2
    return f"{name[:head]}..{name[len(name) - (room - 2 - head) :]}"


@contextmanager
def other_screen(terminal: Terminal) -> Iterator[None]:
    """Use the other screen meanwhile, where the stream is a terminal."""
    if not terminal.stream.isatty():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)  # its default leaves no time for LEAVE
    try:
        print(ENTER, end="", file=terminal.stream, flush=True)
        yield
    finally:
        print(LEAVE, end="", file=terminal.stream, flush=True)
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def show(lines: Sequence[str], terminal: Terminal) -> None:
    """Write lines over those shown before; where the stream is not a terminal, below them."""
    if not terminal.stream.isatty():
        terminal.say("\n".join(lines))
        return
    fitting = lines[: max(1, shutil.get_terminal_size().lines - 1)]
    whole = "".join(f"{line}{REST_OF_LINE}\n" for line in fitting)
    print(f"{HOME}{whole}{REST_OF_SCREEN}", end="", file=terminal.stream, flush=True)
