"""Line charts as SVG, with the standard library alone: the same input gives the same bytes.

Text and grid follow the reader's scheme, light or dark; lines differ by dash as well as by colour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 760
HEIGHT: Final = 400
LEFT: Final = 64
RIGHT: Final = 200
TOP: Final = 44
BOTTOM: Final = 56
LINES: Final = (
    ("#3b82f6", ""), ("#e0762f", "7 3"), ("#2a9d6f", "2 3"), ("#b455c4", "10 3 2 3"), ("#8b949e", "4 4"),
)  # fmt: skip
STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:15px}"
    ".grid{stroke:#d0d7de}.axis{stroke:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#30363d}.axis{stroke:#8b949e}}"
)


@dataclass(frozen=True, slots=True)
class Axis:
    """What is drawn along it, with its unit, and the values at its marks, lowest and highest included."""

    name: str
    marks: Sequence[float]

    def at(self, value: float) -> float:
        """Where a value lies, from 0 at the first mark to 1 at the last; what is beyond lies on the edge."""
        low, high = self.marks[0], self.marks[-1]
        return min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Line:
    """A named row of points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """Draw lines over two axes, each named at its end of the legend.

    Raises:
        ValueError: there are more lines than can be told apart.
    """
    if len(lines) > len(LINES):
        raise ValueError(f"{len(lines)} lines in a chart; {len(LINES)} can be told apart: draw another chart")
    body = [*_frame(title, across, up), *(each for n, line in enumerate(lines) for each in _line(n, line, across, up))]
    inside = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n{inside}\n</svg>\n'
    )


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _frame(title: str, across: Axis, up: Axis) -> Iterator[str]:
    middle = (_y(0) + _y(1)) / 2
    yield f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>'
    for mark in up.marks:
        y = _y(up.at(mark))
        yield f'<line class="grid" x1="{_x(0):.1f}" y1="{y:.1f}" x2="{_x(1):.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>'
    for mark in across.marks:
        yield f'<text x="{_x(across.at(mark)):.1f}" y="{_y(0) + 20:.1f}" text-anchor="middle">{mark:g}</text>'
    yield f'<line class="axis" x1="{_x(0):.1f}" y1="{_y(0):.1f}" x2="{_x(1):.1f}" y2="{_y(0):.1f}"/>'
    yield f'<text x="{_x(0.5):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(across.name)}</text>'
    yield (
        f'<text x="18" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 18 {middle:.1f})">'
        f"{escape(up.name)}</text>"
    )


def _line(number: int, line: Line, across: Axis, up: Axis) -> Iterator[str]:
    colour, dash = LINES[number]
    pen = f'fill="none" stroke="{colour}" stroke-width="2.2"' + (f' stroke-dasharray="{dash}"' if dash else "")
    points = " ".join(f"{_x(across.at(x)):.1f},{_y(up.at(y)):.1f}" for x, y in line.points)
    yield f'<polyline {pen} points="{points}"/>'
    x, y = WIDTH - RIGHT + 16, TOP + 12 + 22 * number
    yield f'<line {pen} x1="{x}" y1="{y}" x2="{x + 28}" y2="{y}"/>'
    yield f'<text x="{x + 36}" y="{y + 4}">{escape(line.name)}</text>'
