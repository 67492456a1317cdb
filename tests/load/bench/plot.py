"""The picture of ``make bench``: median latency of each server under each load, drawn from the result's JSON."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from tests.load.bench.report import footer
from tests.support.pictures.chart import WIDE, Axis, Line, drawn
from tests.support.pictures.panels import marks
from tests.support.pictures.svg import document, words

NAME: Final = "webhook-latency.svg"
LETTERS: Final = 100
"""Of one line of the caption."""
LINE: Final = 18
"""Pixels from one line of the caption to the next."""
TITLE: Final = "Median latency of an admission review"


def picture(found: Mapping[str, Any]) -> str:
    """Draw a result of ``compare``: one line for each server, over the loads."""
    loads = list(dict.fromkeys((row["pod"], row["connections"]) for row in found["rows"]))
    servers = dict.fromkeys(row["server"] for row in found["rows"])
    rows = {(row["server"], row["pod"], row["connections"]): float(row["p50_ms"]) for row in found["rows"]}
    lines = [Line(name, [(float(at), rows[name, *load]) for at, load in enumerate(loads)]) for name in servers]
    names = [f"{pod}, {connections} conn." for pod, connections in loads]
    up = marks(max(rows.values()), "none")
    body = drawn(TITLE, Axis("load", range(len(loads)), names), Axis("p50, ms", up.marks, up.labels), lines, WIDE)
    below = wrap(footer(found), LETTERS)
    caption = [words(text, WIDE.left, WIDE.height + 8 + LINE * at) for at, text in enumerate(below)]
    return document(TITLE, (WIDE.width, WIDE.height + 16 + LINE * len(below)), [*body, *caption])


def write(found: Mapping[str, Any], folder: Path) -> None:
    """Write the picture into a folder."""
    (folder / NAME).write_text(picture(found), encoding="utf-8")
