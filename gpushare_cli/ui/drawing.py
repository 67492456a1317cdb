"""Shapes of the pictures, in the units of their view boxes; templates write them as SVG. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

WIDE: Final = 1000
"""Units of a picture from left to right."""
HIGH: Final = 100
"""Units of a curve from its bottom to its top."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a bar: where it begins, how wide it is, what it is (a class of the style sheet), and its words."""

    x: float
    width: float
    kind: str
    words: str = ""


def blocks(total: int, parts: Iterable[tuple[int, str, str]]) -> list[Block]:
    """Lay amounts out side by side, to scale; what goes beyond the total is cut."""
    found, x = list[Block](), 0.0
    for amount, kind, words in parts:
        width = min(max(0, amount) * WIDE / total if total else 0.0, WIDE - x)
        if width > 0:
            found.append(Block(round(x, 1), round(width, 1), kind, words))
        x += width
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line through points, and the line of a quota (``None``: without one), below ``top``."""

    points: str
    top: int
    quota_y: float | None
    last: int


def curve(points: Sequence[tuple[float, int]], window: float, quota: int | None = None) -> Curve | None:
    """Draw what was seen within a window of seconds; ``None`` where that is fewer than two points."""
    if len(points) < 2:  # noqa: PLR2004 - a line has two ends
        return None
    top = max([value for _, value in points] + ([quota] if quota else [])) or 1
    drawn = " ".join(f"{(1 + at / window) * WIDE:.1f},{HIGH - value * HIGH / top:.1f}" for at, value in points)
    quota_y = None if not quota else round(HIGH - quota * HIGH / top, 1)
    return Curve(points=drawn, top=top, quota_y=quota_y, last=points[-1][1])
