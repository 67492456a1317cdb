"""``gpu-share check``: is this cluster, and is this machine, ready? Each question is data; one runner asks them all."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from enforcer.nvml.driver_root import HERE, DriverRoot
from gpushare_cli.check import cluster, node
from gpushare_cli.check.node import Folders
from gpushare_cli.check.result import Checker, CheckResult, Level
from gpushare_cli.options import add_cluster
from gpushare_cli.terminal import SYMBOLS, Colour, Terminal


@dataclass(frozen=True, slots=True)
class Answer:
    """A question and what was found."""

    category: str
    description: str
    level: Level
    detail: str
    hint: str


class Symbol(StrEnum):
    """How a level looks where the terminal can only show ASCII."""

    OK = "ok"
    WARNING = "warn"
    WRONG = "FAIL"


_WHOSE: Final = {"state": "enforcer's state", "kubelet": "kubelet's root", "cdi": "container devices'"}
_COLOURS: Final = {Level.OK: Colour.GREEN, Level.WARNING: Colour.YELLOW, Level.WRONG: Colour.RED}
_UNICODE: Final = dict(zip(Level, SYMBOLS, strict=True))
_ASCII: Final = dict(zip(Level, Symbol, strict=True))


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    parser = subparsers.add_parser(
        "check",
        help="find out whether this machine and this cluster are ready",
        description="Ask the cluster and this machine what gpu-share needs of them. Exit code 1 if anything is wrong.",
    )
    add_cluster(parser)
    parser.add_argument("--cluster", action="store_true", help="ask the cluster only")
    parser.add_argument("--node", action="store_true", help="ask this machine only; what is missing is then wrong")
    for name, folder in asdict(Folders()).items():
        option = name if name == "state" else f"{name}-root"
        what = f"the {_WHOSE[name]} directory on this machine ({folder})"
        parser.add_argument(f"--{option}", type=Path, default=folder, metavar="DIR", help=what)
    parser.add_argument("--driver-root", type=Path, default=HERE, help="root of the NVIDIA driver (%(default)s)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def run(args: argparse.Namespace) -> int:
    """Ask everything and print the answers. Returns 1 when anything is wrong."""
    answers = list(ask(checkers(args)))
    wrong = any(answer.level is Level.WRONG for answer in answers)
    if args.output == "json":
        print(json.dumps({"ok": not wrong, "checks": [asdict(answer) for answer in answers]}, indent=2))
    else:
        terminal = Terminal.of(sys.stdout, args.color)
        print("\n".join(lines(answers, terminal)))
    return 1 if wrong else 0


def checkers(args: argparse.Namespace) -> list[Checker]:
    """Return the questions the options ask for."""
    both = args.cluster == args.node
    found: list[Checker] = []
    if args.cluster or both:
        found += cluster.checkers(args.kubeconfig, args.context, required=args.cluster)
    if args.node or both:
        folders = Folders(state=args.state, kubelet=args.kubelet_root, cdi=args.cdi_root)
        found += node.checkers(folders, DriverRoot(args.driver_root), required=args.node)
    return found


def ask(questions: Iterable[Checker]) -> Iterable[Answer]:
    """Ask one after the other; after an answer that is the last of its category, the rest of that is left."""
    stopped: set[str] = set()
    for question in questions:
        if question.category in stopped:
            continue
        finding = question.ask()
        if finding.last:
            stopped.add(question.category)
        yield _answer(question, finding)


def _answer(question: Checker, finding: CheckResult) -> Answer:
    hint = "" if finding.level is Level.OK else finding.hint or question.hint
    return Answer(question.category, question.description, finding.level, finding.detail, hint)


def lines(answers: Sequence[Answer], terminal: Terminal) -> list[str]:
    """Lay the answers out by category, and say at the end what it comes to."""
    symbols: Callable[[Level], str] = (_UNICODE if terminal.unicode else _ASCII).__getitem__
    shown: list[str] = []
    for category in dict.fromkeys(answer.category for answer in answers):
        shown += [*([""] if shown else []), category, "-" * len(category)]
        for answer in (one for one in answers if one.category == category):
            symbol = terminal.paint(symbols(answer.level), _COLOURS[answer.level])
            shown.append(f"{symbol} {answer.description}" + (f": {answer.detail}" if answer.detail else ""))
            shown += [f"    {answer.hint}"] if answer.hint else []
    return [*shown, "", _total(answers)]


def _total(answers: Sequence[Answer]) -> str:
    count = {level: sum(1 for answer in answers if answer.level is level) for level in Level}
    return f"{count[Level.OK]} fine, {count[Level.WARNING]} to look at, {count[Level.WRONG]} wrong"
