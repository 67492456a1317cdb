"""The options of ``gpu-share ui``."""

import argparse
from pathlib import Path
from typing import Any, Final

from gpushare_cli.options import add_cluster, add_enforcers, add_prometheus, namespace_name

MOST_PORT: Final = 65535


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Serve a read-only web view of the cluster on this machine's loopback address, with the rights of "
        "your kubeconfig: fleet, GPUs, namespaces, pods, kills. Ctrl-C ends it. Nothing runs in the cluster for it.",
    )
    add_cluster(parser)
    add_enforcers(parser)
    what = "the namespace to start with (default: the fleet, or the context's namespace if you may not list GPUs)"
    parser.add_argument("-n", "--namespace", type=namespace_name, metavar="NS", help=what)
    parser.add_argument("--port", type=port, default=0, metavar="PORT", help="the port (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    add_prometheus(parser, ", for peaks of the last two weeks and longer curves")
    what = "write the pages as files into DIR and end"
    parser.add_argument("--snapshot", type=Path, metavar="DIR", help=what)


def port(text: str) -> int:
    """Read a port. Raises ``argparse.ArgumentTypeError``."""
    if not (text.isascii() and text.isdigit()) or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a port; write 1 to {MOST_PORT}, or 0 for a free one")
    return int(text)
