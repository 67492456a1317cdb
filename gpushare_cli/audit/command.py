"""``gpu-share audit``: read the audit log of this node or of all, and find out whether anybody changed it."""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from enforcer.audit.segments import FOLDER
from gpushare.errors import ConfigError
from gpushare.kube_client import KubeClient
from gpushare_cli.audit import anchors, filters, follow, log_reader, remote
from gpushare_cli.audit.anchors import CLUSTER, Anchor
from gpushare_cli.audit.filters import Record, RecordFilter, printable
from gpushare_cli.audit.follow import Printer, Tail
from gpushare_cli.audit.log_reader import Reading, Selection, Source, VerifyFinding
from gpushare_cli.audit.outcome import outcome
from gpushare_cli.audit.remote import AllNodes
from gpushare_cli.enforcer_pods import AT_ONCE
from gpushare_cli.exit_codes import FINE, NOT_FINE
from gpushare_cli.terminal import Colour, Terminal, table, warn

T = TypeVar("T")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    _check_asked(args)
    return {"show": _show, "follow": _follow, "export": _export, "verify": _verify, "anchors": _anchors}[args.action](
        args
    )


def _wanted(args: argparse.Namespace) -> RecordFilter:
    namespace, pod = _pod(args)
    return RecordFilter(
        namespace=namespace,
        pod=pod,
        container=args.container,
        node=args.node,
        kinds=frozenset(args.kind),
        results=frozenset(map(filters.result, args.result)),
        since=None if args.since is None else filters.since(args.since, datetime.now(UTC)),
    )


def _pod(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Namespace and name of the pods asked for, however they were written."""
    namespace, slash, name = (args.pod or "").partition("/")
    if not slash:
        return args.namespace, args.pod
    if not name or "/" in name:
        raise ConfigError(
            f"--pod {args.pod[:100]!r} is not [NAMESPACE/]POD; write for example team-a/trainer or trainer"
        )
    if args.namespace not in {None, namespace}:
        raise ConfigError(
            f"--pod {args.pod[:100]!r} names another namespace than --namespace; give only one of the two"
        )
    return namespace, name


def _folder(args: argparse.Namespace) -> Path:
    folder: Path = args.log or args.state / FOLDER
    return folder


def _local(args: argparse.Namespace) -> Source:
    source = log_reader.local(_folder(args))
    if args.log is not None and not source.parts:
        raise ConfigError(
            f"--log {args.log} contains no file kills-*.jsonl; name the folder with the segments of the audit log"
        )
    return source


def _check_asked(args: argparse.Namespace) -> None:
    """Refuse options that would be of no effect: who gives them would take this machine's log for another one."""
    everywhere = getattr(args, "all_nodes", True)
    asked = everywhere or CLUSTER in getattr(args, "anchor", [])
    for name, useful in (("enforcer_namespace", everywhere), ("kubeconfig", asked), ("context", asked)):
        if getattr(args, name, None) is not None and not useful:
            option = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{option} selects a cluster, but this command reads only this machine; add -A or remove {option}"
            )


def _show(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    read = _each(args, lambda source: _picked(source, wanted))
    shown = [(source.node, record) for source, (records, _) in read.found for record in records]
    if args.output == "json":
        print(json.dumps([record for _, record in shown], indent=2))
    else:
        rows = ([printable(node)] * args.all_nodes + filters.row(record) for node, record in shown)
        print("\n".join(table([filters.NODE] * args.all_nodes + list(filters.HEADERS), rows)))
    return _code(read, [(source, picked) for source, (_, picked) in read.found])


def _picked(source: Source, wanted: RecordFilter) -> tuple[list[Record], Selection]:
    picked = Selection(Reading(source), wanted)
    return [record for _, record in picked], picked


def _export(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    if args.format == "raw":
        return _raw(args, wanted)
    if args.format == "csv":
        sys.stdout.write(filters.csv_line(filters.COLUMNS))
    read = _each(args, lambda source: _exported(source, wanted, csv=args.format == "csv"), at_once=1)
    return _code(read, read.found)


def _exported(source: Source, wanted: RecordFilter, *, csv: bool) -> Selection:
    picked = Selection(Reading(source), wanted)
    for line, record in picked:
        sys.stdout.write(filters.csv_line(filters.csv_cells(record)) if csv else line.decode("ascii"))
    return picked


def _raw(args: argparse.Namespace, wanted: RecordFilter) -> int:
    if wanted != RecordFilter() or args.all_nodes:
        raise ConfigError(
            "--format raw exports one log without filters; remove the filters and -A, or use --format json"
        )
    sys.stdout.flush()
    for part in _local(args).parts:
        sys.stdout.buffer.writelines(part.lines())
    sys.stdout.buffer.flush()
    return FINE


def _code(read: AllNodes[Any], picked: Sequence[tuple[Source, Selection]]) -> int:
    """Warn of what is wrong with each log; return the exit code."""
    problems = [(source.node, problem) for source, each in picked for problem in each.problems()]
    for node, problem in problems:
        warn(f"node {printable(node)}: {problem}" if node else problem)
    return NOT_FINE if problems or read.failed else FINE


def _each(args: argparse.Namespace, work: Callable[[Source], T], at_once: int = AT_ONCE) -> AllNodes[T]:
    """Do something with the log of this machine, or with those of all nodes."""
    if not args.all_nodes:
        source = _local(args)
        return AllNodes([(source, work(source))], failed=False)
    _check_no_copy(args)
    return remote.on_all_nodes(_api(args), args.enforcer_namespace, work, warn, at_once)


def _check_no_copy(args: argparse.Namespace) -> None:
    if args.log is not None:
        raise ConfigError(
            "--log reads a copy on this machine and -A reads the logs of all nodes; give only one of the two"
        )


def _api(args: argparse.Namespace) -> KubeClient:
    return KubeClient.connect(args.kubeconfig, args.context)


def _follow(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    until = math.inf if args.seconds is None else time.monotonic() + args.seconds
    printer = Printer(args.output, nodes=args.all_nodes)
    if args.all_nodes:
        _check_no_copy(args)
        return follow.follow_all_nodes(_api(args), args.enforcer_namespace, wanted, printer, until)
    if args.log is not None:
        _local(args)  # a copy that is not there will not come either
    return follow.follow_local(Tail(_folder(args)), wanted, printer, until)


def _verify(args: argparse.Namespace) -> int:
    known = [each for text in args.anchor or [CLUSTER] * args.all_nodes for each in _known(args, text)]
    if not args.all_nodes:
        source = _local(args)
        return _say(anchors.compared(Source(_node(args, source, known), source.parts), known), asked=bool(args.anchor))
    if args.node is not None:
        raise ConfigError(
            "--node names the node of one log and -A reads the logs of all nodes; give only one of the two"
        )
    read = _each(args, lambda source: anchors.compared(source, known))
    codes = [_say(finding, asked=True) for _, finding in read.found]
    silent = {each.node for each in known if not each.hint} - {"", *(source.node for source, _ in read.found)}
    for node in sorted(silent):
        warn(
            f"node {printable(node)}: the cluster has anchors of this node's log, but the log could not "
            "be read; start the enforcer there, or verify a copy with --log"
        )
    return max([*codes, _code(read, []), NOT_FINE if silent else FINE])


def _node(args: argparse.Namespace, source: Source, known: Sequence[Anchor]) -> str:
    """Whose log it is, where that is of any matter."""
    if not any(each.node for each in known):
        return args.node or ""
    return args.node or os.environ.get("NODE_NAME", "") or log_reader.node_of(source)


def _known(args: argparse.Namespace, text: str) -> list[Anchor]:
    return anchors.in_cluster(_api(args), warn) if text == CLUSTER else anchors.given(text)


def _say(finding: VerifyFinding, *, asked: bool) -> int:
    """Say what verifying came to; ``asked`` is whether it was to be compared with anchors."""
    terminal, found = Terminal.of(), outcome(finding, asked=asked)
    whose = f"{printable(finding.source.node)}: " if asked and finding.source.node else ""
    colour = Colour.RED if found.broken else Colour.GREEN
    terminal.say(f"{whose}{terminal.paint(found.word, colour)}: {found.sentence}")
    for line in found.more:
        terminal.say(line)
    for doubt in found.doubts:
        terminal.say(f"{whose}{terminal.paint('warning', Colour.YELLOW)}: {doubt}")
    if found.lack:
        terminal.say(found.lack)
    return FINE if found.fine else NOT_FINE


def _anchors(args: argparse.Namespace) -> int:
    found = anchors.in_cluster(_api(args), warn)
    for each in sorted(found, key=lambda each: (each.node, each.head.seq)):
        line = f"{each.node} {each.head} {each.source}"
        forged = f"# {line}: not an anchor, because every user who may create Events can forge it"
        print(printable(forged if each.hint else line))
    return FINE
