"""What ``gpu-share top`` shows of the node it runs on, from the enforcer's status; and with ``-A`` of all nodes.

There it is the status of every enforcer, read by running ``gpu-share top`` in its container.

A node that does not answer is a row that says so. What its enforcer wrote is read like the status of this node.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from enforcer.attribution.unaccounted import TOLERANCE_MIB
from gpushare.kube_client import KubeClient
from gpushare_cli import enforcer_pods, node_status
from gpushare_cli.check.workloads import labelled
from gpushare_cli.enforcer_pods import AT_ONCE, EnforcerPod, find_enforcers
from gpushare_cli.lookups import optional
from gpushare_cli.node_status import GpuUse, NodeStatus, Use, stale
from gpushare_cli.terminal import NOT_AVAILABLE, cell
from gpushare_cli.top.arguments import ALL_CONTAINERS, ALL_GPUS, NODE_CONTAINERS, NODE_GPUS
from gpushare_cli.top.view import Grid, View
from gpushare_cli.words import clean, counted


def node_view(status: NodeStatus) -> View:
    """Return the view of a node's status."""
    old = stale(status)
    if not status.gpus:
        lines = ("the enforcer found no GPU on this node", *(f"problem: {problem}" for problem in status.problems))
        return View(grids=(), notices=lines, data=status.raw, problem=old)
    gpus = sorted(status.gpus, key=by_index)
    uses = [_row(gpu, use) for gpu in gpus for use in sorted(gpu.uses, key=by_name)]
    grids = (
        Grid(
            headers=NODE_GPUS, rows=[_node_gpu(gpu) for gpu in gpus], drop=("MODEL", "MODE", "CLIENTS"),
            optional=("UNACCOUNTED",),
        ),
        Grid(
            headers=NODE_CONTAINERS, rows=uses, drop=("PID", "CONTAINER"), shorten="NAMESPACE/POD",
            optional=("BORROWED",),
        ),
    )  # fmt: skip
    return View(grids=grids, notices=tuple(notices(status)), data=status.raw, problem=old)


def notices(status: NodeStatus, lead: str = "") -> Iterator[str]:
    """Yield the sentences about a node; ``lead`` begins each."""
    yield from (f"{lead}GPU {cell(gpu.index)} cannot be read: {gpu.blind}" for gpu in status.gpus if gpu.blind)
    yield from (f"{lead}problem: {problem}" for problem in status.problems)
    if not status.enforcing:
        yield f"{lead}enforcement is off: the enforcer only warns containers over their quota"


def by_index(gpu: GpuUse) -> tuple[float, str]:
    """Sort GPUs as the node numbers them."""
    return (math.inf if gpu.index is None else gpu.index), gpu.uuid


def by_name(use: Use) -> tuple[str, str, str]:
    """Sort containers by their names."""
    return use.namespace, use.pod, use.container


def _node_gpu(gpu: GpuUse) -> tuple[object, ...]:
    memory = "/".join(cell(value) for value in (gpu.used_mib, gpu.limit_mib, gpu.total_mib))
    unaccounted = gpu.unaccounted_mib if (gpu.unaccounted_mib or 0) > TOLERANCE_MIB else None
    return gpu.index, gpu.model, gpu.mode, memory, unaccounted, gpu.clients


def _row(gpu: GpuUse, use: Use) -> tuple[object, ...]:
    """Return the row of a container; its processes are listed in it, and none is not available."""
    pids = ",".join(map(str, use.pids)) or NOT_AVAILABLE
    reserved = f" of {use.reserved}" if use.reserved else ""
    memory = f"{cell(use.used_mib)}/{cell(use.quota_mib)}{reserved}"
    return gpu.index, f"{use.namespace}/{use.pod}", use.container, pids, memory, use.borrowed_mib, use.shown


UTIL: Final = "UTIL"
NO_ENFORCER: Final = "no enforcer runs there"
OVER: Final = frozenset({"over", "killing"})
MAX_PROBLEM: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What a node's enforcer answered; without ``status`` it did not, and ``problem`` says why.

    With both, the status is not current.
    """

    node: str
    status: NodeStatus | None = None
    problem: str = ""

    def json(self) -> dict[str, Any]:
        """Return it for programs; the status as the enforcer wrote it."""
        return {"node": self.node, "problem": self.problem, "status": None if self.status is None else self.status.raw}


def view(api: KubeClient, namespace: str | None) -> View:
    """Ask every enforcer, and return the view of all nodes.

    Raises:
        GpuShareError: the enforcers cannot be found, see ``find_enforcers``.
    """
    answers = statuses(api, namespace)
    silent = [each.node for each in answers if each.problem]
    problem = f"{counted(len(silent), 'node')} of {len(answers)} without a current answer" if silent else ""
    data = {"time": node_status.now().isoformat(), "nodes": [each.json() for each in answers]}
    return View(grids=grids(answers), notices=tuple(_notices(answers)), data=data, problem=problem)


def statuses(api: KubeClient, namespace: str | None) -> list[NodeAnswer]:
    """Ask every enforcer for its status, several at once; a labelled node without an enforcer is in the list too.

    Raises:
        GpuShareError: the enforcers cannot be found, see ``find_enforcers``.
    """
    pods = find_enforcers(api, namespace)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(partial(status_of, api), pods))
    known, nodes = {each.node for each in found}, optional(lambda: labelled(api)) or ()
    without = [NodeAnswer(node=name, problem=NO_ENFORCER) for name in nodes if name not in known]
    return sorted([*found, *without], key=lambda each: each.node)


def status_of(api: KubeClient, pod: EnforcerPod) -> NodeAnswer:
    """Ask one enforcer for its status. ``gpu-share top`` fails after it has written one that is old."""
    output, why = enforcer_pods.run(api, pod, ("top", "-o", "json"))
    problem = clean(why[:MAX_PROBLEM])
    try:
        raw = json.loads(output)
    except (ValueError, RecursionError):
        raw = None
    if not isinstance(raw, dict):
        return NodeAnswer(
            node=pod.node, problem=problem or "the enforcer's answer is not a JSON object; read the log of its pod"
        )
    return NodeAnswer(node=pod.node, status=node_status.read(raw, {}), problem=problem)


def grids(answers: Sequence[NodeAnswer]) -> tuple[Grid, Grid]:
    """Return the tables of GPUs and of containers."""
    gpus, uses = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for answer in answers:
        for gpu in sorted(answer.status.gpus, key=by_index) if answer.status else ():
            gpus.append((answer.node, *_gpu(gpu, answer)))
            uses += [(answer.node, *_use(gpu, use)) for use in sorted(gpu.uses, key=by_name)]
        if answer.status is None or not answer.status.gpus:
            state = "no answer" if answer.status is None else "no GPU"
            gpus.append((answer.node, *[None] * (len(ALL_GPUS) - 2), state))
    return (
        Grid(
            headers=ALL_GPUS, rows=gpus, drop=("MODEL", "MODE", "SHARES", UTIL, "RESERVED"), shorten="NODE",
            optional=(UTIL,),
        ),
        Grid(
            headers=ALL_CONTAINERS, rows=uses, drop=("RESERVED", "CONTAINER", UTIL), shorten="NAMESPACE/POD",
            optional=(UTIL,),
        ),
    )  # fmt: skip


def _gpu(gpu: GpuUse, answer: NodeAnswer) -> tuple[object, ...]:
    shares = len({(use.namespace, use.pod, use.container) for use in gpu.uses if use.quota_mib})
    return (
        gpu.index, gpu.model, gpu.mode, _percent(gpu.utilization), gpu.used_mib, gpu.reserved_mib, gpu.total_mib,
        shares, state_of(gpu, answer),
    )  # fmt: skip


def state_of(gpu: GpuUse, answer: NodeAnswer) -> str:
    """Say the worst of a GPU in few words; the sentences below the tables say more."""
    over = sum(use.shown in OVER for use in gpu.uses)
    if answer.problem:
        return "old"
    if gpu.blind:
        return "blind"
    if gpu.unhealthy:
        return f"unhealthy: {gpu.unhealthy}"
    if gpu.contended:
        return "contended"
    if answer.status is not None and answer.status.breaker_open:
        return "breaker open"
    return f"{over} over" if over else "ok"


def _use(gpu: GpuUse, use: Use) -> tuple[object, ...]:
    left = "-" if use.kill_in is None else f"{use.kill_in:.1f}s"
    return (
        gpu.index, f"{use.namespace}/{use.pod}", use.container, _percent(use.utilization), use.used_mib,
        use.quota_mib, use.reserved_mib, left, use.shown,
    )  # fmt: skip


def _percent(number: int | None) -> str | None:
    return None if number is None else f"{number}%"


def _notices(answers: Iterable[NodeAnswer]) -> Iterator[str]:
    for answer in answers:
        lead = f"{answer.node}: "
        if answer.problem:
            yield f"{lead}{answer.problem}"
        if answer.status is not None:
            yield from notices(answer.status, lead)
