"""``gpu-share breaker``: whether the circuit breaker of a node, or of all nodes, is open, and how it is closed.

On a node it reads and removes the breaker's file. Elsewhere it reads the enforcers' reports in the ResourceSlices,
and closes a breaker by running ``gpu-share breaker --reset`` in that node's enforcer.
"""

import argparse
from pathlib import Path
from typing import Final

from enforcer.audit.segments import FOLDER
from enforcer.kill.circuit_breaker import NAME, opened_at, reset
from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.kube_client import KubeClient
from gpushare_cli import enforcer_pods
from gpushare_cli.audit.filters import printable
from gpushare_cli.check.workloads import EnforcerReport, reports
from gpushare_cli.options import STATE_DIRECTORY
from gpushare_cli.terminal import FINE, NOT_FINE, show, table
from gpushare_cli.words import clean

HEADERS: Final = ("NODE", "STATE", "SINCE", "REASON")
CLOSED: Final = "closed"
OPEN: Final = "open"
UNKNOWN: Final = "unknown"
BY_HAND: Final = "an operator opened it (file breaker-open.json)"
"""A file that the enforcer wrote says since when it is there."""
RESET: Final = ("breaker", "--reset")
MAX_ANSWER: Final = 300


def run(args: argparse.Namespace) -> int:
    """Show it, or reset it. Returns 1 while a breaker is open, or where nobody knows."""
    folder = args.state or STATE_DIRECTORY
    elsewhere = any(each is not None for each in (args.node, args.kubeconfig, args.context)) or args.output == "json"
    try:
        if args.state is None and (elsewhere or not _has_state(folder)):
            return _in_cluster(args)
        return _on_node(folder, args)
    except OSError as error:
        raise GpuShareError(f"{folder / NAME} cannot be read or removed: {error.strerror}; run as root") from None


def _on_node(folder: Path, args: argparse.Namespace) -> int:
    if args.output == "json":
        raise ConfigError(
            "-o json reads breakers through the API server and --state reads a directory; give only one of the two"
        )
    if not _has_state(folder):
        raise ConfigError(f"{folder} is not a state directory; run this on a node with the enforcer, or give --state")
    if args.reset:
        was_open = reset(folder)
        print("the breaker is closed; each container has a full budget" if was_open else "the breaker was not open")
        return FINE
    return _show(folder)


def _has_state(folder: Path) -> bool:
    return any((folder / each).exists() for each in (FOLDER, NAME))


def _show(folder: Path) -> int:
    since = opened_at(folder)
    if since is None:
        print("the breaker is closed")
        return FINE
    print(
        f"the breaker is open{since and f' since {printable(since)}'}: the enforcer kills no container of this node; "
        "to close it, run this command with --reset"
    )
    return NOT_FINE


def _in_cluster(args: argparse.Namespace) -> int:
    try:
        api = KubeClient.connect(args.kubeconfig, args.context)
    except ClusterError as error:
        raise ClusterError(
            f"{error.message}; on a GPU node, give --state DIR instead to read the breaker of that node"
        ) from None
    if args.reset:
        return _reset_remote(api, args)
    found = [each for each in breakers(api) if args.node in {None, each[0]}]
    if not found:
        where = "no node" if args.node is None else f"node {args.node!r:.200}"
        verb = "has" if args.node is None else "does not have"
        raise GpuShareError(f"{where} {verb} a ResourceSlice of gpu-share; list the nodes: kubectl get resourceslices")
    keys = [each.lower() for each in HEADERS]
    show(args.output, [dict(zip(keys, each, strict=True)) for each in found], table(HEADERS, found))
    return FINE if all(state == CLOSED for _, state, *_ in found) else NOT_FINE


def breakers(api: KubeClient) -> list[tuple[str, str, str, str]]:
    """Read the circuit breakers of all nodes from the enforcers' reports, by the nodes' names; see ``HEADERS``.

    Raises:
        ClusterError: the user may not read ResourceSlices, or the API server cannot be asked.
    """
    return [(clean(node), *_breaker(report)) for node, report in sorted(reports(api).items())]


def _breaker(report: EnforcerReport | None) -> tuple[str, str, str]:
    """Return its state, since when, and why; empty where that is not known."""
    if report is None:
        return UNKNOWN, "", "its enforcer reports nothing"
    if report.breaker is None:
        return CLOSED, "", ""
    return OPEN, report.breaker, report.breaker_reason or ("" if report.breaker else BY_HAND)


def _reset_remote(api: KubeClient, args: argparse.Namespace) -> int:
    if args.node is None:
        raise ConfigError("--reset closes one breaker: name its node with --node NODE")
    pods = [each for each in enforcer_pods.find_enforcers(api, args.enforcer_namespace) if each.node == args.node]
    if not pods:
        raise GpuShareError(f"no enforcer runs on node {args.node!r:.200}; gpu-share breaker shows the nodes")
    output, problem = enforcer_pods.run(api, pods[0], RESET)
    if problem:
        raise GpuShareError(f"node {args.node}: {problem}")
    print(f"{args.node}: {clean(output[:MAX_ANSWER].decode('utf-8', 'replace').strip())}")
    return FINE
