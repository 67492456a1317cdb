"""``gpu-share breaker``: whether this node's enforcer ends anybody, and how it is told to do so again."""

import argparse
from pathlib import Path
from typing import Any

from enforcer.audit.log import FOLDER
from enforcer.kill.circuit_breaker import NAME, opened_at, reset
from gpushare.errors import ConfigError, GpuShareError
from gpushare_cli.audit.filters import printable
from gpushare_cli.exit_codes import FINE, NOT_FINE
from gpushare_cli.options import add_state


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    parser = subparsers.add_parser(
        "breaker",
        help="say whether a storm of kills stopped enforcement on this node, and start it again",
        description="Say whether this node's breaker is open: it opens where most of a node would be killed, "
        "and nobody is until an operator has found out why and resets it.",
    )
    add_state(parser)
    parser.add_argument("--reset", action="store_true", help="close it; everybody gets a full grace period first")


def run(args: argparse.Namespace) -> int:
    """Say it, or reset it. Returns 1 while the breaker is open."""
    try:
        if not any((args.state / each).exists() for each in (FOLDER, NAME)):
            advice = "run this on a node with the enforcer, or give --state"
            raise ConfigError(f"{args.state} is not a state directory; {advice}")
        return _reset(args.state) if args.reset else _say(args.state)
    except OSError as error:
        raise GpuShareError(f"{args.state / NAME}: {error.strerror}; root may read and remove it") from None


def _reset(folder: Path) -> int:
    was_open = reset(folder)
    print("the breaker is closed; grace periods start anew" if was_open else "the breaker was not open")
    return FINE


def _say(folder: Path) -> int:
    since = opened_at(folder)
    if since is None:
        print("the breaker is closed")
        return FINE
    print(f"the breaker is open{since and f' since {printable(since)}'}: nobody is killed on this node until --reset")
    return NOT_FINE
