"""Serves the pages, opens a browser and ends with Ctrl-C; or writes the pages as files."""

import argparse
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from gpushare.errors import ConfigError
from gpushare.kube_client import namespace_of
from gpushare.signals import stopped_by_signal
from gpushare_cli.exit_codes import FINE, NOT_FINE
from gpushare_cli.prometheus import Prometheus
from gpushare_cli.terminal import warn
from gpushare_cli.ui.cache import Cached
from gpushare_cli.ui.pages import Pages
from gpushare_cli.ui.server import leading_to, serve
from gpushare_cli.ui.snapshot import write
from gpushare_cli.ui.sources import Sources
from gpushare_cli.words import counted

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
