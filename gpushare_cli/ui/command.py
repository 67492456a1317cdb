"""``gpu-share ui``: connects with the reader's kubeconfig, serves the pages, opens a browser, ends with Ctrl-C."""

import argparse
import webbrowser
from threading import Thread

from gpushare.errors import ConfigError
from gpushare.kube_client import KubeClient, namespace_of
from gpushare.signals import stopped_by_signal
from gpushare_cli import extras
from gpushare_cli.exit_codes import FINE


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted, or write the pages as files."""
    if lack := extras.missing(extras.UI):
        raise ConfigError(lack)
    from gpushare_cli.ui.changes import Changes  # noqa: PLC0415 - Flask may be missing
    from gpushare_cli.ui.pages import Pages  # noqa: PLC0415
    from gpushare_cli.ui.server import serve  # noqa: PLC0415
    from gpushare_cli.ui.sources import Sources  # noqa: PLC0415

    changes = Changes()
    sources = Sources(KubeClient.connect(args.kubeconfig, args.context), changes, args.enforcer_namespace)
    namespace = args.namespace or namespace_of(args.kubeconfig, args.context)
    pages = Pages(sources, namespace, wait=1.0, live=True, start=bool(args.namespace))
    try:
        server, address = serve(pages, changes, args.port)
    except (OSError, SystemExit) as error:
        raise ConfigError(f"--port {args.port}: cannot be used: {error}; write another port, or 0") from None
    stopped = stopped_by_signal()
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"gpu-share ui: {address}\nOnly this machine reaches it, with that address. Ctrl-C ends it.", flush=True)
    if not args.no_browser:
        webbrowser.open(address)
    stopped.wait()
    changes.close()
    return FINE
