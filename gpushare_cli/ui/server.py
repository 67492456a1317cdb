"""The local server: it answers the pages that were opened with its token, and nothing else.

Flask makes the answers; werkzeug's server, which comes with it, takes the requests, each in a thread. ``write``
makes files of the same pages instead, for a ticket or an archive.
"""

import argparse
import secrets
import webbrowser
from collections import deque
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final
from urllib.parse import quote

from flask import Flask, Response, render_template, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from gpushare.errors import ConfigError
from gpushare.kube_client import namespace_of
from gpushare.patterns import Pattern
from gpushare.signals import stopped_by_signal
from gpushare_cli.node_status import now
from gpushare_cli.placement.placing import in_gib
from gpushare_cli.prometheus import Prometheus
from gpushare_cli.terminal import FINE, NOT_FINE, warn
from gpushare_cli.ui import pages
from gpushare_cli.ui.cache import Cached, Changes
from gpushare_cli.ui.guard import HEADERS, refusal
from gpushare_cli.ui.pages import Page, Pages
from gpushare_cli.ui.sources import Sources
from gpushare_cli.words import counted

LOOPBACK: Final = "127.0.0.1"
HEARTBEAT: Final = 15.0
"""Seconds after which a page without news hears that the server is there."""
TOKEN_BYTES: Final = 24
STATIC: Final = ("style.css", "page.js")


def application(made: Pages, changes: Changes, port: int, token: str) -> Flask:
    """Return the application of a server at this port, for those who know its token."""
    app = templates()

    @app.before_request
    def _guard() -> Response | None:
        status = refusal(request.method, request.path, dict(request.headers), port, token)
        return None if status is None else Response(status=status)

    @app.after_request
    def _headers(answer: Response) -> Response:
        answer.headers.update(HEADERS)
        return answer

    @app.get("/<_token>/")
    def _start(_token: str) -> Response:
        return Response(leading_to(f"{made.first()}.html"))

    @app.get("/<_token>/events")
    def _events(_token: str) -> Response:
        return Response(_news(changes), mimetype="text/event-stream")

    @app.get("/<_token>/<name>")
    def _page(_token: str, name: str) -> Response:
        return _answer(app, made, name)

    return app


def leading_to(address: str) -> str:
    """Return a page that leads to an address; unlike after a redirect, it is the one that asks for the next page."""
    return f'<!doctype html><title>gpu-share</title><meta http-equiv="refresh" content="0; url={escape(address)}">'


def _answer(app: Flask, made: Pages, name: str) -> Response:
    if name in STATIC:
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return Response(static(app, name), mimetype=kind)
    if name == "kills.jsonl":
        return Response(made.export(request.args), mimetype="application/jsonl")
    page = made.page(name.removesuffix(".html"), request.args)
    return Response(rendered(page, made), status=HTTPStatus.OK if page.found else HTTPStatus.NOT_FOUND)


def rendered(page: Page, made: Pages) -> str:
    """Write a page as HTML, inside an application's context."""
    return render_template(
        page.template, title=page.title, problems=page.problems, live=made.live, namespace_of_reader=made.namespace,
        time=f"{now():%Y-%m-%d %H:%M:%S} UTC", **page.values,
    )  # fmt: skip


def static(app: Flask, name: str) -> bytes:
    """Read the style sheet or the script."""
    return (Path(app.root_path) / "static" / name).read_bytes()


def templates() -> Flask:
    """Return an application without addresses whose templates have what they write with."""
    app = Flask(__name__, static_folder=None)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters["gib"] = lambda mib: "N/A" if mib is None else in_gib(mib) if mib else "0"
    app.jinja_env.globals.update(
        href=lambda *words: f"{'_'.join(quote(each, safe='') for each in words)}.html",
        reserved_blocks=pages.reserved_blocks, used_blocks=pages.used_blocks,
    )  # fmt: skip
    return app


def _news(changes: Changes) -> Iterator[bytes]:
    """Yield an event for each change, and a comment while there is none."""
    seen = changes.number
    yield b": ready\n\n"
    while True:
        number = changes.wait(seen, HEARTBEAT)
        yield b": quiet\n\n" if number == seen else f"data: {number}\n\n".encode()
        seen = number


class _Quiet(WSGIRequestHandler):
    """Writes no line for each request: the address has the token."""

    def log(self, *_: Any) -> None:
        """Write nothing."""

    def version_string(self) -> str:
        """Name no versions."""
        return "gpu-share"


def serve(made: Pages, changes: Changes, port: int) -> tuple[BaseWSGIServer, str]:
    """Bind the loopback address; return the server, which does not run yet, and the address to open.

    Raises:
        OSError: the port is taken.
    """
    token = secrets.token_urlsafe(TOKEN_BYTES)
    server = make_server(LOOPBACK, port, Flask(__name__), threaded=True, request_handler=_Quiet)
    server.app = application(made, changes, server.server_port, token)  # its guard knows the port
    return server, f"http://{LOOPBACK}:{server.server_port}/{token}/"


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


PAGE_WAIT: Final = 1.0
SNAPSHOT_WAIT: Final = 30.0
"""Seconds that a page of a snapshot waits for what it shows."""


def run(args: argparse.Namespace, api: Cached, server: Prometheus | None) -> int:
    """Show what is read through ``api``, and what ``server`` has of the past."""
    namespace, live = args.namespace or namespace_of(args.kubeconfig, args.context), args.snapshot is None
    sources = Sources(api, args.enforcer_namespace, server)
    wait = PAGE_WAIT if live else SNAPSHOT_WAIT
    pages = Pages(sources, namespace, wait=wait, live=live, start=bool(args.namespace))
    return _serve(pages, args) if live else _write(pages, args.snapshot)


def _serve(pages: Pages, args: argparse.Namespace) -> int:
    try:
        server, address = serve(pages, pages.sources.changes, args.port)
    except (OSError, SystemExit):  # werkzeug explains a port that is taken, and exits
        raise ConfigError(f"--port {args.port} cannot be used; write another one, or 0 for a free one") from None
    stopped = stopped_by_signal()
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"gpu-share ui: {address}\nOnly this machine reaches it, with that address. Ctrl-C ends it.", flush=True)
    # Everybody on this machine sees the words of a command, so a browser's are those of a file that we alone may read.
    with TemporaryDirectory(prefix="gpu-share-ui-") as folder:
        if not args.no_browser:
            (Path(folder) / "open.html").write_text(leading_to(address))
            webbrowser.open((Path(folder) / "open.html").as_uri())
        stopped.wait()
    return FINE


def _write(pages: Pages, folder: Path) -> int:
    try:
        number, more = write(pages, folder)
    except OSError as error:
        raise ConfigError(f"--snapshot {folder}: {error.strerror}; name a folder that you may write") from None
    print(f"{counted(number, 'page')} in {folder}; open {folder / 'index.html'}")
    if more:
        warn(f"the cluster has more pages than a snapshot takes, which are {number}")
    return NOT_FINE if more else FINE
