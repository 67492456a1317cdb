"""``gpu-share ui``: connects with the reader's kubeconfig, and reads the cluster while the pages' code is loaded."""

import argparse

from gpushare.errors import ConfigError
from gpushare.kube_client import KubeClient
from gpushare_cli import extras
from gpushare_cli.prometheus import Prometheus
from gpushare_cli.ui.cache import Cached, Changes


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted, or write the pages as files."""
    if lack := extras.missing(extras.UI):
        raise ConfigError(lack)
    server, changes = Prometheus.of(args), Changes(once=args.snapshot is not None)
    api = Cached(KubeClient.connect(args.kubeconfig, args.context), changes)
    api.start()
    from gpushare_cli.ui.server import run as shown  # noqa: PLC0415 - it takes a while, and Flask may be missing

    try:
        return shown(args, api, server)
    finally:
        changes.close()
