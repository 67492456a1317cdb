"""Panels of a Grafana dashboard as pictures, from what Prometheus returned for their queries."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tests.support.pictures.chart import LINES, Axis, Layout, Line, drawn
from tests.support.pictures.svg import document, words

WIDTH: Final = 380
HEIGHT: Final = 240
GAP: Final = 14
WHOLE: Final = 2 * WIDTH + GAP
HEAD: Final = 40
ACROSS: Final = 2
ORDER: Final = ("stat", "table", "timeseries")
MOST: Final = len(LINES)
"""Lines of a panel, rows of a table."""
CELL: Final = 22
LETTER: Final = 7.6
"""Pixels of a row of a table, and of a letter in it."""
STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
UNITS: Final = {
    "bytes": (1024**3, " GiB"), "percentunit": (0.01, " %"), "reqps": (1.0, "/s"), "s": (1.0, " s"), "none": (1.0, ""),
}  # fmt: skip
"""Units of Grafana: what one is, and how it is written."""
VALUE: Final = "Value"
"""Grafana's name of the column with the values."""
LETTERS: Final = 20
"""What is longer in a cell is cut."""
DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its legend, its labels, and its points (seconds, value)."""

    legend: str
    labels: dict[str, str]
    points: Sequence[tuple[float, float]]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard, and what its queries returned."""

    title: str
    kind: str
    unit: str
    found: Sequence[Series]
    columns: Sequence[tuple[str, str]] = ()
    """Of a table: each label, or ``VALUE``, and its heading; the others come in the order of their names."""
    hidden: Collection[str] = ()
    """Of a table: what it leaves out."""


def row(title: str, panels: Sequence[Panel], note: str) -> str:
    """Draw one row of the dashboard, its short panels first, with a note of where its figures come from."""
    ordered = sorted(panels, key=lambda each: ORDER.index(each.kind))
    body, y = [words(title, GAP, 26, "title")], HEAD
    for group in _grouped(ordered):
        high, width = max(map(_height, group)), WHOLE if group[0].kind == "table" else WIDTH
        for at, each in enumerate(group):
            body += [f'<svg x="{GAP + at * (WIDTH + GAP)}" y="{y}" width="{width}" height="{high}">']
            body += [*_panel(each, width, high), "</svg>"]
        y += high + GAP
    size = ACROSS * (WIDTH + GAP) + GAP, y + 20
    return document(f"Dashboard of gpu-share: {title}", size, [*body, words(note, GAP, y + 6)])


def _grouped(panels: Iterable[Panel]) -> Iterator[Sequence[Panel]]:
    """Group what stands side by side: a table has a line of its own."""
    line = list[Panel]()
    for each in panels:
        if line and (len(line) == ACROSS or "table" in {line[0].kind, each.kind}):
            yield line
            line = []
        line.append(each)
    yield line


def value(number: float, unit: str) -> str:
    """Write a value in its unit; times in milliseconds, seconds or days."""
    if unit == "dateTimeAsIso":
        return f"{datetime.fromtimestamp(number / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    if unit == "s" and abs(number) >= DAY:
        return f"{number / DAY:.0f} days"
    if unit == "s" and abs(number) < 1:
        return f"{number * 1000:.3g} ms"
    one, name = UNITS[unit]
    return f"{number / one:.3g}{name}"


def marks(highest: float, unit: str) -> Axis:
    """Return an axis from 0 to a round value at or above the highest, in at most five steps."""
    one = UNITS[unit][0]
    step = (highest / one or 1.0) / 4
    size = 10.0 ** math.floor(math.log10(step))
    step = next(each for each in STEPS if each * size >= step * 0.999) * size * one
    values = [n * step for n in range(5)]
    return Axis("", values, [value(each, unit) for each in values])


def _height(panel: Panel) -> int:
    rows = min(MOST, max(1, len(panel.found)))
    return {"stat": 46 + 26 * rows, "table": 62 + CELL * rows}.get(panel.kind, HEIGHT)


def _panel(panel: Panel, width: int, high: int) -> Iterator[str]:
    yield f'<rect class="grid" fill="none" x="0.5" y="0.5" width="{width - 1}" height="{high - 1}" rx="6"/>'
    draw = {"timeseries": _lines, "table": _table, "stat": _stat}[panel.kind]
    yield from draw(panel)


def _lines(panel: Panel) -> Iterator[str]:
    if not panel.found:
        yield from (words(panel.title, 8, 24, "title"), words("no series: nothing happened", 24, 54))
        return
    found = sorted(panel.found, key=lambda each: -max(y for _, y in each.points))[:MOST]
    shown = Layout(WIDTH, HEIGHT, left=66, right=34, top=40, bottom=36 + 17 * max(1, len(found)), below=True)
    begin = min(each.points[0][0] for each in found)
    end = max(each.points[-1][0] for each in found)
    times = [0.0, (end - begin) / 2 / 60, (end - begin) / 60]
    across = Axis("", times, ["0", f"{times[1]:.1f}", f"{times[2]:.1f} min"])
    lines = [Line(each.legend, [((x - begin) / 60, y) for x, y in each.points]) for each in found]
    up = marks(max((y for each in found for _, y in each.points)), panel.unit)
    title = f"{panel.title} ({MOST} of {len(panel.found)})" if len(panel.found) > MOST else panel.title
    yield from drawn(title, across, up, lines, shown)


def _stat(panel: Panel) -> Iterator[str]:
    yield words(panel.title, 8, 24, "title")
    for number, each in enumerate(panel.found[:MOST]):
        legend = f"{each.legend}: " if each.legend else ""
        yield words(f"{legend}{value(each.last, panel.unit)}", 24, 54 + 26 * number, "title")


def _table(panel: Panel) -> Iterator[str]:
    """Draw the columns that there is room for."""
    yield words(panel.title, 8, 24, "title")
    others = sorted({name for each in panel.found for name in each.labels} - {"__name__"})
    headings = {**dict(panel.columns), **{name: name for name in (*others, VALUE) if name not in dict(panel.columns)}}
    x = 8.0
    for name, heading in headings.items():
        column = [heading, *(_cell(each, name, panel.unit) for each in panel.found[:MOST])]
        if name not in panel.hidden and x + _wide(column) < WHOLE:
            yield from _column(column, x)
            x += _wide(column)


def _cell(found: Series, name: str, unit: str) -> str:
    return value(found.last, unit) if name == VALUE else found.labels.get(name, "")[:LETTERS]


def _wide(column: Sequence[str]) -> float:
    return LETTER * (max(map(len, column)) + 2)


def _column(cells: Sequence[str], x: float) -> Iterator[str]:
    return (words(text, x, 52 + CELL * line) for line, text in enumerate(cells))


def series(answer: Any, legend: str) -> list[Series]:
    """Read the result of a query, at one moment or over a range; NaN is left out.

    A legend names labels as ``{{label}}``.
    """
    return [made for each in answer["result"] if (made := _series(each, legend)).points]


def _series(found: Any, legend: str) -> Series:
    labels: dict[str, str] = found["metric"]
    name = legend
    for key, text in labels.items():
        name = name.replace(f"{{{{{key}}}}}", text[:12] if key == "gpu" else text)
    points = [(float(at), float(text)) for at, text in found.get("values") or [found["value"]]]
    return Series(name, labels, [point for point in points if math.isfinite(point[1])])
