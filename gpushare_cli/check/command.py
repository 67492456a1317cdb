"""``gpu-share check``: is this cluster, and is this machine, ready? Each question is data; one runner asks them all."""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gpushare_cli.check.result import Checker, CheckResult, Level, warning
from gpushare_cli.terminal import SYMBOLS, Colour, Terminal, show
from gpushare_cli.words import counted

if TYPE_CHECKING:
    from gpushare_cli.check.connection import Ask
PAGE: Final = "docs/operators/check.md#check"
OPERATORS: Final = "these are for operators, who run gpu-share check --cluster; pods in your namespace do not need them"
AGAIN_SECONDS: Final = 2.0
"""Between two rounds of questions, with ``--wait``."""
_COLOURS: Final = {Level.OK: Colour.GREEN, Level.WARNING: Colour.YELLOW, Level.WRONG: Colour.RED}


def run(args: argparse.Namespace) -> int:
    """Ask everything, again until all is well or the time is over, and print the answers. Returns 1 if one is wrong."""
    deadline = time.monotonic() + args.wait
    while wrong := _wrong(answers := list(ask(checkers(args), tenant=args.namespace is not None))):
        if time.monotonic() >= deadline:
            break
        time.sleep(AGAIN_SECONDS)
    unknown = not wrong and any(answer.last for answer in answers)
    found = {"ok": None if unknown else not wrong, "checks": [answer.json() for answer in answers]}
    show(args.output, found, lines(answers, Terminal.of(colour=args.color)))
    return 1 if wrong else 0


def _wrong(answers: Iterable[CheckResult]) -> bool:
    return any(answer.level is Level.WRONG for answer in answers)


def checkers(args: argparse.Namespace) -> Iterator[Checker]:
    """Yield the questions the options ask for. A cluster that was named in any way has to be there."""
    named = args.cluster or any(each is not None for each in (args.namespace, args.kubeconfig, args.context))
    of_cluster = args.cluster or args.namespace is not None or args.pre
    if of_cluster or not args.node:
        from gpushare_cli.check.connection import connected  # noqa: PLC0415 - the node's questions need no client

        required = named or (args.pre and not args.node)
        yield from connected(args.kubeconfig, args.context, required=required, questions=partial(_of_cluster, args))
    if args.node or not of_cluster:
        yield from _of_node(args)


def _of_cluster(args: argparse.Namespace) -> list[tuple[str, "Ask"]]:
    from gpushare_cli.check import cluster, preinstall  # noqa: PLC0415 - the webhook's code, which takes long to load

    return preinstall.questions() if args.pre else cluster.questions(args.namespace)


def _of_node(args: argparse.Namespace) -> list[Checker]:
    from gpushare_cli.check import node  # noqa: PLC0415 - a check of the cluster alone needs none of it

    given = {"state": args.state, "kubelet": args.kubelet_root, "cdi": args.cdi_root, "driver": args.driver_root}
    return node.checkers(node.folders_of(given), required=args.node, pre=args.pre)


def ask(questions: Iterable[Checker], *, tenant: bool = False) -> Iterable[CheckResult]:
    """Ask one after the other; after an answer that is the last of its category, the rest of that is left.

    What the user may not ask is put together into one answer at the end. A ``tenant`` needs no rights on the cluster.
    """
    stopped: set[str] = set()
    withheld: list[CheckResult] = []
    for question in questions:
        if question.category in stopped:
            continue
        answer = question.answered()
        if answer.last:
            stopped.add(question.category)
        if answer.forbidden:
            withheld.append(answer)
        else:
            yield answer
    if withheld:
        yield replace(_not_asked(withheld, tenant=tenant), category=withheld[0].category, description="not asked")


def _not_asked(withheld: Sequence[CheckResult], *, tenant: bool) -> CheckResult:
    names = ", ".join(each.description for each in withheld)
    if tenant:
        return warning(names, OPERATORS)
    details, hints = (dict.fromkeys(each) for each in zip(*((one.detail, one.hint) for one in withheld), strict=True))
    return warning(f"{names}: {'; '.join(details)}", "; ".join(hints))


def lines(answers: Sequence[CheckResult], terminal: Terminal) -> list[str]:
    """Lay the answers out by category, and say at the end what it comes to."""
    symbols = dict(zip(Level, SYMBOLS if terminal.unicode else ("ok", "warn", "FAIL"), strict=True))
    shown: list[str] = []
    for category in dict.fromkeys(answer.category for answer in answers):
        shown += [*([""] if shown else []), category, "-" * len(category)]
        for answer in (one for one in answers if one.category == category):
            symbol = terminal.paint(symbols[answer.level], _COLOURS[answer.level])
            shown.append(f"{symbol} {answer.description}" + (f": {answer.detail}" if answer.detail else ""))
            shown += [f"    {answer.hint}"] if answer.hint else []
    return [*shown, "", _total(answers)]


def _total(answers: Sequence[CheckResult]) -> str:
    count = {level: sum(1 for answer in answers if answer.level is level) for level in Level}
    total = f"{count[Level.OK]} ok, {counted(count[Level.WARNING], 'warning')}, {count[Level.WRONG]} wrong"
    return total if count[Level.OK] == len(answers) else f"{total}; each line is explained on {PAGE}"
