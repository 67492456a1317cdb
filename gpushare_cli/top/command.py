"""``gpu-share top``: which view was asked for, and how it is shown."""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient, namespace_of
from gpushare_cli import node_status
from gpushare_cli.terminal import FINE, NOT_FINE, Terminal, warn
from gpushare_cli.top import all_nodes, namespace
from gpushare_cli.top.view import View, other_screen, show
from gpushare_cli.words import sentence

UNIT: Final = "GPU memory in MiB"


def run(args: argparse.Namespace) -> int:
    """Show it once, or until interrupted. Returns 1 when it is not whole, or old: an enforcer does not answer."""
    look = _looking(args)
    if args.watch:
        return _watch(look, args)
    view, terminal = look(), Terminal.of(sys.stdout, args.color)
    text = json.dumps(view.data, indent=2) if args.output == "json" else "\n".join(_lines(view, terminal, args))
    terminal.say(text)
    if view.problem:
        warn(view.problem)
    return NOT_FINE if view.problem else FINE


def _looking(args: argparse.Namespace) -> Callable[[], View]:
    """Return what makes the view that the options name."""
    if not args.all_nodes and args.namespace is None:
        return lambda: all_nodes.node_view(node_status.load(args.state))
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
