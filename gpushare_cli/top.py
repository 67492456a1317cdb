"""``gpu-share top``: this node's GPUs, the containers on them, and their use against quota."""

import argparse
import json
import math
import sys
import time
from typing import Any, Final

from gpushare.quantity import quoted
from gpushare_cli import node_status
from gpushare_cli.node_status import GpuUse, NodeStatus, Use
from gpushare_cli.options import add_state
from gpushare_cli.terminal import NOT_AVAILABLE, Colour, Terminal, cell, table

STALE_SECONDS: Final = 10.0
INTERVAL: Final = (0.1, 3600.0)
"""Least and most seconds between two outputs: the enforcer writes no more often than that."""
GPUS: Final = ("GPU", "MODEL", "MODE", "MEM-USED/LIMIT/TOTAL", "CLIENTS")
CONTAINERS: Final = ("GPU", "NAMESPACE/POD", "CONTAINER", "PID", "MEM/QUOTA", "STATE")
CLEAR: Final = "\x1b[H\x1b[2J"
COLOURS: Final = {
    "ok": Colour.GREEN,
    "near": Colour.YELLOW,
    "over": Colour.RED,
    "killing": Colour.RED,
    "killed": Colour.RED,
    "blind": Colour.RED,
}


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    parser = subparsers.add_parser(
        "top",
        help="show GPUs, the containers on them, and their use against quota",
        description="Show this node's GPUs and the containers on them, in MiB, from what the enforcer last saw.",
    )
    add_state(parser)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("-w", "--watch", action="store_true", help="show it again and again")
    what = "of --watch, at least 0.1 (default 1)"
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="SECONDS", help=what)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(args: argparse.Namespace) -> int:
    """Show it once, or until interrupted. Returns 1 when what is shown is old: the enforcer is not running."""
    terminal = Terminal.of(sys.stdout, args.color)
    while True:
        status = node_status.load(args.state)
        text = json.dumps(status.raw, indent=2) if args.output == "json" else "\n".join(lines(status, terminal))
        old = stale(status)
        if args.watch and terminal.stream.isatty():
            text = CLEAR + text
        terminal.say(text)
        if old:
            print(f"gpu-share: {old}", file=sys.stderr)
        if not args.watch:
            return 1 if old else 0
        time.sleep(args.interval)


def stale(status: NodeStatus) -> str:
    """Return a sentence when the status is older than the enforcer would let it get; empty when it is fresh."""
    age = status.age(node_status.now())
    if age is None:
        return "the status does not say when it was written"
    return f"this is {age:.0f} s old: the enforcer does not run" if age > STALE_SECONDS else ""


def lines(status: NodeStatus, terminal: Terminal) -> list[str]:
    """Lay a node's status out: the GPUs, then the containers on them."""
    if not status.gpus:
        return ["no GPU is seen on this node", *(f"problem: {problem}" for problem in status.problems)]
    gpus = sorted(status.gpus, key=_by_index)
    shown = table(GPUS, [_gpu(gpu) for gpu in gpus])
    rows = [_row(gpu, use) for gpu in gpus for use in sorted(gpu.uses, key=_by_name)]
    if rows:
        shown += ["", *table(CONTAINERS, rows)]
    shown += [f"GPU {cell(gpu.index)} is not seen: {gpu.blind}" for gpu in gpus if gpu.blind]
    shown += [f"problem: {problem}" for problem in status.problems]
    if not status.enforcing:
        shown.append("enforcement is switched off: containers over their quota are warned only")
    return [_coloured(line, terminal) for line in shown]


def _gpu(gpu: GpuUse) -> tuple[object, ...]:
    memory = "/".join(cell(value) for value in (gpu.used_mib, gpu.limit_mib, gpu.total_mib))
    return gpu.index, gpu.model, gpu.mode, memory, gpu.clients


def _row(gpu: GpuUse, use: Use) -> tuple[object, ...]:
    """Return the row of a container; its processes are listed in it, and none is not available."""
    pids = ",".join(map(str, use.pids)) or NOT_AVAILABLE
    reserved = f" of {use.reserved}" if use.reserved else ""
    memory = f"{cell(use.used_mib)}/{cell(use.quota_mib)}{reserved}"
    container = f"{use.container} (low priority)" if use.low_priority else use.container
    return gpu.index, f"{use.namespace}/{use.pod}", container, pids, memory, use.shown


def _by_index(gpu: GpuUse) -> tuple[float, str]:
    return (math.inf if gpu.index is None else gpu.index), gpu.uuid


def _by_name(use: Use) -> tuple[str, str, str]:
    return use.namespace, use.pod, use.container


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not INTERVAL[0] <= seconds <= INTERVAL[1]:
        message = (
            f"{quoted(text)} is not a number of seconds from {INTERVAL[0]} to {INTERVAL[1]:.0f}; write for example 1"
        )
        raise argparse.ArgumentTypeError(message)
    return seconds


def _coloured(line: str, terminal: Terminal) -> str:
    head, _, state = line.rpartition(" ")
    colour = COLOURS.get(state)
    return f"{head} {terminal.paint(state, colour)}" if colour else line
