"""Line charts; lines differ by dash as well as by colour."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from tests.support.pictures.svg import document

LINES: Final = (
    ("#3b82f6", ""), ("#e0762f", "7 3"), ("#2a9d6f", "2 3"), ("#b455c4", "10 3 2 3"), ("#8b949e", "4 4"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Size of a chart and of the margins around its plot, in pixels; the legend is to the right, or below."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    below: bool = False

    def x(self, share: float) -> float:
        """Return where a share of the axis across lies."""
        return self.left + share * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        """Return where a share of the axis up lies."""
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def legend(self, number: int) -> tuple[float, float]:
        """Return where the entry of a line begins, and its height."""
        if self.below:
            return self.left, self.height - self.bottom + 42 + 17 * number
        return self.width - self.right + 16, self.top + 12 + 22 * number


WIDE: Final = Layout(width=760, height=400, left=64, right=200, top=44, bottom=56)


@dataclass(frozen=True, slots=True)
class Axis:
    """What is drawn along it, with its unit, and the values at its marks, lowest and highest included."""

    name: str
    marks: Sequence[float]
    labels: Sequence[str] = ()
    """Of the marks, where these are not just numbers."""

    def at(self, value: float) -> float:
        """Where a value lies, from 0 at the first mark to 1 at the last; what is beyond lies on the edge."""
        low, high = self.marks[0], self.marks[-1]
        return min(1.0, max(0.0, (value - low) / ((high - low) or 1.0)))

    def labelled(self) -> Iterator[tuple[float, str]]:
        """Return where each mark lies, and its label."""
        labels = self.labels or [f"{mark:g}" for mark in self.marks]
        return ((self.at(mark), escape(label)) for mark, label in zip(self.marks, labels, strict=True))


@dataclass(frozen=True, slots=True)
class Line:
    """A named row of points (x, y)."""

    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, across: Axis, up: Axis, lines: Sequence[Line]) -> str:
    """Draw a chart as a picture of its own. Raises ``ValueError`` as ``drawn`` does."""
    return document(title, (WIDE.width, WIDE.height), drawn(title, across, up, lines, WIDE))


def drawn(title: str, across: Axis, up: Axis, lines: Sequence[Line], layout: Layout) -> list[str]:
    """Draw lines over two axes, each named at its end of the legend.

    Raises:
        ValueError: there are more lines than can be told apart.
    """
    if len(lines) > len(LINES):
        raise ValueError(f"{len(lines)} lines in a chart; {len(LINES)} can be distinguished: draw another chart")
    frame = _frame(title, across, up, layout)
    return [*frame, *(each for n, line in enumerate(lines) for each in _line(n, line, across, up, layout))]


def _frame(title: str, across: Axis, up: Axis, layout: Layout) -> Iterator[str]:
    low, high, left, right = layout.y(0), layout.y(1), layout.x(0), layout.x(1)
    middle = (low + high) / 2
    yield f'<text class="title" x="{8 if layout.below else left:.0f}" y="24">{escape(title)}</text>'
    for share, label in up.labelled():
        y = layout.y(share)
        yield f'<line class="grid" x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{layout.left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    for share, label in across.labelled():
        yield f'<text x="{layout.x(share):.1f}" y="{low + 20:.1f}" text-anchor="middle">{label}</text>'
    yield f'<line class="axis" x1="{left:.1f}" y1="{low:.1f}" x2="{right:.1f}" y2="{low:.1f}"/>'
    if across.name:
        yield (
            f'<text x="{layout.x(0.5):.1f}" y="{layout.height - 14}" text-anchor="middle">{escape(across.name)}</text>'
        )
    if up.name:
        yield (
            f'<text x="18" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 18 {middle:.1f})">'
            f"{escape(up.name)}</text>"
        )


def _line(number: int, line: Line, across: Axis, up: Axis, layout: Layout) -> Iterator[str]:
    colour, dash = LINES[number]
    pen = f'fill="none" stroke="{colour}" stroke-width="2.2"' + (f' stroke-dasharray="{dash}"' if dash else "")
    points = " ".join(f"{layout.x(across.at(x)):.1f},{layout.y(up.at(y)):.1f}" for x, y in line.points)
    yield f'<polyline {pen} points="{points}"/>'
    x, y = layout.legend(number)
    yield f'<line {pen} x1="{x:g}" y1="{y:g}" x2="{x + 28:g}" y2="{y:g}"/>'
    yield f'<text x="{x + 36:g}" y="{y + 4:g}">{escape(line.name)}</text>'
