"""Pictures of a terminal: what a program wrote, with its colours; and the same as it came, animated without scripts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from gpushare_cli.terminal import Colour
from tests.support.pictures.svg import document

CLASSES: Final = {
    Colour.BOLD: "b", Colour.DIM: "d", Colour.RED: "r", Colour.GREEN: "g", Colour.YELLOW: "y", Colour.CYAN: "c",
}  # fmt: skip
STYLE: Final = (
    'text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;'
    "fill:#e6edf3;white-space:pre}.paper{fill:#0d1117}"
    ".b{font-weight:700}.d{fill:#8b949e}.r{fill:#ff7b72}.g{fill:#56d364}.y{fill:#e3b341}.c{fill:#76e3ea}"
)
"""Dark for every reader, as most terminals are."""
COLUMN: Final = 8.5
ROW: Final = 19
MARGIN: Final = 14
_CODE: Final = re.compile(r"(\x1b\[\d*m)")
_TEXT: Final = "{http://www.w3.org/2000/svg}text"


@dataclass(frozen=True, slots=True)
class Written:
    """Lines that came at once, with the seconds since the first."""

    at: float
    lines: Sequence[str]


def picture(title: str, lines: Sequence[str]) -> str:
    """Draw lines of a terminal; SGR codes give the colours of ``gpushare_cli.terminal``."""
    columns = max(len(_CODE.sub("", line)) for line in lines)
    size = columns * COLUMN + 2 * MARGIN, len(lines) * ROW + 2 * MARGIN
    return document(title, size, [_paper(*size), *_rows(lines, columns)], STYLE)


def animated(title: str, written: Sequence[Written], columns: int, rows: int, hold: float) -> str:
    """Draw a terminal of so many columns and rows in which lines come when they came, and then again.

    Longer lines are wrapped. ``hold`` is how many seconds the end stays. With ``prefers-reduced-motion`` nothing
    moves, and the end is shown.
    """
    size = columns * COLUMN + 2 * MARGIN, rows * ROW + 2 * MARGIN
    style = STYLE + _motion(written, columns, rows, hold)
    window = f'<svg y="{MARGIN}" width="{size[0]:g}" height="{rows * ROW}"><g class="roll">'
    top = f'{window}<g transform="translate(0 {-MARGIN})">'
    lines = [line for each in written for line in each.lines]
    curtain = f'<rect class="paper curtain" width="{size[0]:g}" height="{rows * ROW}"/>'
    body = [_paper(*size), top, *_rows(lines, columns), f"</g>{curtain}</g></svg>"]
    return document(title, size, body, style)


def lines_of(svg: str) -> list[str]:
    """Return the lines that a picture of a terminal shows, wrapped ones in one piece.

    Raises:
        xml.etree.ElementTree.ParseError: it is not XML.
    """
    return ["".join(each.itertext()).rstrip() for each in ET.fromstring(svg).iter(_TEXT)]


def _motion(written: Sequence[Written], columns: int, rows: int, hold: float) -> str:
    """Two movements in steps: the text rolls up, and a curtain leaves the rows that were written."""
    whole = written[-1].at + hold
    roll, curtain, shown = list[str](), list[str](), 0
    for each in written:
        when = f"{100 * each.at / whole:.2f}%"
        shown += sum(_height(line, columns) for line in each.lines)
        roll.append(f"{when}{{transform:translateY({-max(0, shown - rows) * ROW}px)}}")
        curtain.append(f"{when}{{transform:translateY({shown * ROW}px)}}")
    last = [f"translateY({-max(0, shown - rows) * ROW}px)", f"translateY({shown * ROW}px)"]
    return (
        f"@keyframes roll{{{''.join(roll)}100%{{transform:{last[0]}}}}}"
        f"@keyframes curtain{{{''.join(curtain)}100%{{transform:{last[1]}}}}}"
        f".roll{{transform:{last[0]};animation:roll {whole:.1f}s step-end infinite}}"
        f".curtain{{transform:{last[1]};animation:curtain {whole:.1f}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){.roll,.curtain{animation:none}}"
    )


def _paper(width: float, height: float) -> str:
    return f'<rect class="paper" width="{width:g}" height="{height:g}" rx="8"/>'


def _height(line: str, columns: int) -> int:
    return max(1, -(-len(_CODE.sub("", line)) // columns))


def _rows(lines: Iterable[str], columns: int) -> Iterator[str]:
    row = 0
    for line in lines:
        y = MARGIN + ROW * row + 14
        yield f'<text xml:space="preserve" x="{MARGIN}" y="{y}">{_wrapped(line, columns, y)}</text>'
        row += _height(line, columns)


def _wrapped(line: str, columns: int, y: int) -> str:
    """Return the text of a line as spans: one for each colour, and a new one on each row."""
    made, at = list[str](), 0
    for kind, text in _spans(line):
        left = text
        while left:
            piece, left = left[: columns - at % columns], left[columns - at % columns :]
            place = f' x="{MARGIN}" y="{y + at // columns * ROW}"' if at and at % columns == 0 else ""
            colour = f' class="{kind}"' if kind else ""
            made.append(f"<tspan{colour}{place}>{escape(piece)}</tspan>" if colour or place else escape(piece))
            at += len(piece)
    return "".join(made)


def _spans(line: str) -> Iterator[tuple[str, str]]:
    kind = ""
    for part in _CODE.split(line):
        if _CODE.fullmatch(part):
            kind = CLASSES[Colour(part)] if part in list(Colour) else ""
        elif part:
            yield kind, part
