"""Figures of a run: what was found, what it has to be, and the table of docs/design/scale.md that they go into."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.table import with_rows

PAGE: Final = Path(__file__).parents[3] / "docs" / "design" / "scale.md"
BEGIN, END = "<!-- figures: python -m tests.load.scale -->\n", "<!-- end of figures -->"
HEAD: Final = ("run", "figure", "found", "wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. ``held`` says whether it is as wanted; where nothing is wanted it is true."""

    run: str
    what: str
    found: str
    wanted: str = ""
    held: bool = True

    def __str__(self) -> str:
        verdict = "" if not self.wanted else f" (wanted {self.wanted}: {'yes' if self.held else 'NO'})"
        return f"{self.run}: {self.what}: {self.found}{verdict}"


def at_most(run: str, what: str, found: float, most: float, *, unit: str = "", more: str = "") -> Figure:
    """A figure with an upper limit; ``more`` is said behind it."""
    return Figure(run=run, what=what, found=f"{found:.2f}{unit}{more}", wanted=f"≤ {most:g}{unit}", held=found <= most)


def none_of(run: str, what: str, found: Sequence[object], of: str) -> Figure:
    """Things of which there may be none; ``of`` says how many were looked at."""
    return Figure(run=run, what=what, found=f"{len(found)} of {of}", wanted="0", held=not found)


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that so many percent of all do not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def write(figures: Iterable[Figure], page: Path = PAGE) -> None:
    """Put figures into the page; rows of runs that were not made stay, those of these runs go."""
    fresh = [(each.run, each.what, each.found, each.wanted) for each in figures]
    made = {row[0] for row in fresh}
    text = with_rows(page.read_text(), (BEGIN, END), HEAD, lambda old: [*(r for r in old if r[0] not in made), *fresh])
    page.write_text(text)
