"""``gpu-share audit``: read the audit log of this node or of all, and find out whether anybody changed it."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from enforcer.audit.segments import FOLDER
from gpushare.errors import ConfigError
from gpushare.kube_client import KubeClient
from gpushare_cli.audit import filters, log_reader, remote
from gpushare_cli.audit.filters import Record, RecordFilter, printable
from gpushare_cli.audit.log_reader import Outcome, Reading, Selection, Source
from gpushare_cli.audit.remote import CLUSTER, Anchor, Read
from gpushare_cli.enforcer_pods import AT_ONCE
from gpushare_cli.options import pod_name
from gpushare_cli.terminal import FINE, NOT_FINE, Colour, Terminal, table, warn

T = TypeVar("T")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    _check_asked(args)
    return {"show": _show, "export": _export, "verify": _verify, "anchors": _anchors}[args.action](args)


def _wanted(args: argparse.Namespace) -> RecordFilter:
    namespace, pod = (args.namespace, None) if args.pod is None else pod_name(args.pod, args.namespace)
    since = None if args.since is None else filters.since(args.since, datetime.now(UTC))
    return RecordFilter(namespace=namespace or None, pod=pod, node=args.node, since=since)


def _local(args: argparse.Namespace) -> Source:
    source = log_reader.local(args.log or args.state / FOLDER)
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
    found, failed = _each(args, lambda source: _picked(source, wanted))
    shown = [(source.node, record) for source, (records, _) in found for record in records]
    if args.output == "json":
        print(json.dumps([record for _, record in shown], indent=2))
    else:
        rows = ([printable(node)] * args.all_nodes + filters.row(record) for node, record in shown)
        print("\n".join(table([filters.NODE] * args.all_nodes + list(filters.HEADERS), rows)))
    return _code([(source, picked) for source, (_, picked) in found], failed)


def _picked(source: Source, wanted: RecordFilter) -> tuple[list[Record], Selection]:
    picked = Selection(Reading(source), wanted)
    return [record for _, record in picked], picked


def _export(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    if args.format == "raw":
        return _raw(args, wanted)
    return _code(*_each(args, lambda source: _exported(source, wanted), at_once=1))


def _exported(source: Source, wanted: RecordFilter) -> Selection:
    picked = Selection(Reading(source), wanted)
    for line, _ in picked:
        sys.stdout.write(line.decode("ascii"))
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


def _code(picked: Sequence[tuple[Source, Selection]], failed: bool) -> int:  # noqa: FBT001 - one half of ``Read``
    """Warn of what is wrong with each log; return the exit code."""
    problems = [(source.node, problem) for source, each in picked for problem in each.problems()]
    for node, problem in problems:
        warn(f"node {printable(node)}: {problem}" if node else problem)
    return NOT_FINE if problems or failed else FINE


def _each(args: argparse.Namespace, work: Callable[[Source], T], at_once: int = AT_ONCE) -> Read[T]:
    """Do something with the log of this machine, or with those of all nodes."""
    if not args.all_nodes:
        source = _local(args)
        return [(source, work(source))], False
    if args.log is not None:
        raise ConfigError(
            "--log reads a copy on this machine and -A reads the logs of all nodes; give only one of the two"
        )
    return remote.on_all_nodes(_api(args), args.enforcer_namespace, work, warn, at_once)


def _api(args: argparse.Namespace) -> KubeClient:
    return KubeClient.connect(args.kubeconfig, args.context)


def _verify(args: argparse.Namespace) -> int:
    given = args.anchor or [CLUSTER] * args.all_nodes
    read = [remote.in_cluster(_api(args), warn) if each == CLUSTER else remote.given(each) for each in given]
    known = [anchor for anchors in read for anchor in anchors]
    if not args.all_nodes:
        source = _local(args)
        source = Source(_node(args, source, known), source.parts)
        asked = bool(args.anchor)
        return _say(source.node if asked else "", remote.compared(source, known, asked=asked))
    if args.node is not None:
        raise ConfigError(
            "--node names the node of one log and -A reads the logs of all nodes; give only one of the two"
        )
    found, failed = _each(args, lambda source: remote.compared(source, known))
    codes = [_say(source.node, outcome) for source, outcome in found]
    silent = {each.node for each in known if not each.hint} - {"", *(source.node for source, _ in found)}
    for node in sorted(silent):
        warn(
            f"node {printable(node)}: the cluster has anchors of this node's log, but the log could not "
            "be read; start the enforcer there, or verify a copy with --log"
        )
    return max([*codes, NOT_FINE if silent or failed else FINE])


def _node(args: argparse.Namespace, source: Source, known: Sequence[Anchor]) -> str:
    """Whose log it is, where that is of any matter."""
    if not any(each.node for each in known):
        return args.node or ""
    return args.node or os.environ.get("NODE_NAME", "") or log_reader.node_of(source)


def _say(node: str, found: Outcome) -> int:
    """Say what verifying the log of a node came to."""
    terminal, whose = Terminal.of(), f"{printable(node)}: " if node else ""
    colour = Colour.GREEN if found.word == "ok" else Colour.RED
    terminal.say(f"{whose}{terminal.paint(found.word, colour)}: {found.sentence}")
    terminal.say(found.more)
    for doubt in found.doubts:
        terminal.say(f"{whose}{terminal.paint('warning', Colour.YELLOW)}: {doubt}")
    if found.lack:
        terminal.say(found.lack)
    return FINE if found.fine else NOT_FINE


def _anchors(args: argparse.Namespace) -> int:
    found = remote.in_cluster(_api(args), warn)
    for each in sorted(found, key=lambda each: (each.node, each.head.seq)):
        line = f"{each.node} {each.head} {each.source}"
        forged = f"# {line}: not an anchor, because every user who may create Events can forge it"
        print(printable(forged if each.hint else line))
    return FINE
