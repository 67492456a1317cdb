"""A picture as a whole: its frame, and colours that follow the reader's scheme, light or dark."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape, quoteattr

FOLDER: Final = Path(__file__).parents[3] / "docs" / "pictures"
STYLE: Final = (
    "svg{background:#fff}"
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:15px}"
    ".grid{stroke:#d0d7de}.axis{stroke:#57606a}"
    "@media(prefers-color-scheme:dark){"
    "svg{background:#0d1117}text{fill:#e6edf3}.grid{stroke:#30363d}.axis{stroke:#8b949e}}"
)


def document(title: str, size: tuple[float, float], body: Iterable[str], style: str = STYLE) -> str:
    """Return a picture of a width and a height, in pixels; the title is for readers who do not see it."""
    width, height = size
    inside = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f"aria-label={quoteattr(title)}>\n<style>{style}</style>\n{inside}\n</svg>\n"
    )


def words(text: str, x: float, y: float, kind: str = "", anchor: str = "") -> str:
    """Return one line of text, with a class of the style and an anchor."""
    more = (f'class="{kind}" ' if kind else "") + (f'text-anchor="{anchor}" ' if anchor else "")
    return f'<text {more}x="{x:g}" y="{y:g}">{escape(text)}</text>'
