"""``gpu-share top``: which view was asked for, and how it is shown."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient, namespace_of
from gpushare_cli import node_status
from gpushare_cli.api_errors import sentence
from gpushare_cli.exit_codes import FINE, NOT_FINE
from gpushare_cli.options import add_cluster, add_enforcers, add_state, namespace_name, seconds
from gpushare_cli.terminal import Terminal
from gpushare_cli.top import all_nodes, namespace, node
from gpushare_cli.top.screen import other_screen, show
from gpushare_cli.top.view import View, columns

UNIT: Final = "GPU memory in MiB"
SORT: Final = columns((node.GPUS, node.CONTAINERS, all_nodes.GPUS, all_nodes.CONTAINERS, namespace.CONTAINERS))


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Show this node's GPUs and the containers on them, in MiB, from the enforcer's last sample; those "
        "of all nodes (-A), for operators; or what the containers of a namespace use (-n), for its tenants.",
    )
    whose = parser.add_mutually_exclusive_group()
    add_state(whose)
    whose.add_argument(
        "-A", "--all-nodes", action="store_true", help="all nodes; runs a command in their enforcers (pods/exec)"
    )
    what = "the sharing pods of a namespace; runs a command in their sidecars, which the ClusterRole edit allows"
    whose.add_argument("-n", "--namespace", type=namespace_name, metavar="NS", help=what)
    add_enforcers(parser, "; with -A")
    add_cluster(parser)
    what = "the column to sort by, the largest number first"
    parser.add_argument("--sort", choices=SORT, metavar="COLUMN", default="", help=what)
    what = "json: every value; with --watch, one line for each sample"
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help=what)
    parser.add_argument("-w", "--watch", action="store_true", help="repeat until interrupted")
    what = "seconds between samples of --watch, at least 0.1 (default 1)"
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS", help=what)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(args: argparse.Namespace) -> int:
    """Show it once, or until interrupted. Returns 1 when it is not whole, or old: an enforcer does not answer."""
    look = _looking(args)
    if args.watch:
        return _watch(look, args)
    view, terminal = look(), Terminal.of(sys.stdout, args.color)
    text = json.dumps(view.data, indent=2) if args.output == "json" else "\n".join(_lines(view, terminal, args))
    terminal.say(text)
    if view.problem:
        print(f"gpu-share: {view.problem}", file=sys.stderr)
    return NOT_FINE if view.problem else FINE


def _looking(args: argparse.Namespace) -> Callable[[], View]:
    """Return what makes the view that the options name."""
    if not args.all_nodes and args.namespace is None:
        return lambda: node.view(node_status.load(args.state))
    api = KubeClient.connect(args.kubeconfig, args.context)
    if args.all_nodes:
        return lambda: all_nodes.view(api, args.enforcer_namespace)
    name = args.namespace or namespace_of(args.kubeconfig, args.context)
    return lambda: namespace.view(api, name)


def _watch(look: Callable[[], View], args: argparse.Namespace) -> int:
    """Show it again and again. A cluster that does not answer once is a line, and the next look may succeed."""
    view = look()  # what is wrong from the start ends it
    with other_screen(Terminal.of(sys.stdout, args.color)):
        while True:
            terminal = Terminal.of(sys.stdout, args.color)  # its width may have changed
            if args.output == "json":
                terminal.say(json.dumps(view.data))
            else:
                whole = replace(view, notices=(*view.notices, *filter(None, [view.problem])))
                show(_lines(whole, terminal, args), terminal)
            time.sleep(args.interval)
            view = _next(look, view)


def _next(look: Callable[[], View], before: View) -> View:
    try:
        return look()
    except ClusterError as error:
        problem = f"not current: {sentence(error)}"
        return View(grids=before.grids, notices=before.notices, data={"problem": problem}, problem=problem)


def _lines(view: View, terminal: Terminal, args: argparse.Namespace) -> list[str]:
    lines = view.lines(terminal, args.sort.upper())
    return [*lines, UNIT] if any(each.rows for each in view.grids) else lines
