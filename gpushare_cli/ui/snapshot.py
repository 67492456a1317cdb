"""The pages as files, for a ticket or an archive: what links lead to from the fleet and the reader's namespace."""

from collections import deque
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from gpushare.patterns import Pattern
from gpushare_cli.ui.pages import Pages
from gpushare_cli.ui.server import STATIC, rendered, static, templates

MOST_PAGES: Final = 2000
NAME: Final = Pattern(r"[a-z]{1,20}(_[A-Za-z0-9.-]{1,253}){0,2}\.html", 600)
"""Names of pages that become files: links come from records that nodes wrote."""


def write(made: Pages, folder: Path) -> tuple[int, bool]:
    """Write the pages; return how many, and whether there are more than ``MOST_PAGES``. Raises ``OSError``."""
    app = templates()
    folder.mkdir(parents=True, exist_ok=True)
    waiting, known = deque([f"{made.first()}.html"]), {f"{made.first()}.html"}
    written = 0
    with app.app_context():
        while waiting and written < MOST_PAGES:
            name = waiting.popleft()
            html = rendered(made.page(name.removesuffix(".html"), {}), made)
            (folder / name).write_text(html, encoding="utf-8")
            written += 1
            links = _Links()
            links.feed(html)
            new = [each for each in links.found if NAME.fullmatch(each) and each not in known]
            waiting += dict.fromkeys(new)
            known.update(new)
    for name in STATIC[:1]:
        (folder / name).write_bytes(static(app, name))
    (folder / "index.html").write_bytes((folder / f"{made.first()}.html").read_bytes())
    return written, bool(waiting)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where a link leads."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
