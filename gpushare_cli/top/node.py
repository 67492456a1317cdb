"""What ``gpu-share top`` shows of the node it runs on, from the enforcer's status."""

import math
from collections.abc import Iterator

from enforcer.attribution.unaccounted import TOLERANCE_MIB
from gpushare_cli.node_status import GpuUse, NodeStatus, Use, stale
from gpushare_cli.terminal import NOT_AVAILABLE, cell
from gpushare_cli.top.columns import NODE_CONTAINERS, NODE_GPUS
from gpushare_cli.top.view import Grid, View


def view(status: NodeStatus) -> View:
    """Return the view of a node's status."""
    old = stale(status)
    if not status.gpus:
        lines = ("the enforcer found no GPU on this node", *(f"problem: {problem}" for problem in status.problems))
        return View(grids=(), notices=lines, data=status.raw, problem=old)
    gpus = sorted(status.gpus, key=by_index)
    uses = [_row(gpu, use) for gpu in gpus for use in sorted(gpu.uses, key=by_name)]
    grids = (
        Grid(
            headers=NODE_GPUS, rows=[_gpu(gpu) for gpu in gpus], drop=("MODEL", "MODE", "CLIENTS"),
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


def _gpu(gpu: GpuUse) -> tuple[object, ...]:
    memory = "/".join(cell(value) for value in (gpu.used_mib, gpu.limit_mib, gpu.total_mib))
    unaccounted = gpu.unaccounted_mib if (gpu.unaccounted_mib or 0) > TOLERANCE_MIB else None
    return gpu.index, gpu.model, gpu.mode, memory, unaccounted, gpu.clients


def _row(gpu: GpuUse, use: Use) -> tuple[object, ...]:
    """Return the row of a container; its processes are listed in it, and none is not available."""
    pids = ",".join(map(str, use.pids)) or NOT_AVAILABLE
    reserved = f" of {use.reserved}" if use.reserved else ""
    memory = f"{cell(use.used_mib)}/{cell(use.quota_mib)}{reserved}"
    return gpu.index, f"{use.namespace}/{use.pod}", use.container, pids, memory, use.borrowed_mib, use.shown
