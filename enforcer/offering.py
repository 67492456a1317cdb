"""Keeping this node's GPUs on offer, and their MPS daemons in service: slow work, in threads beside the loop."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.inventory import InventoryPolicy, LeftOut, capacity_mib, offer, resource_slices, shared_gpus
from enforcer.model import Gpu, Quota
from enforcer.mps import ComputeModes, MpsDaemon
from enforcer.mps_manager import MpsManager
from enforcer.slices import SlicePublisher
from enforcer.view import View
from gpushare.cluster import CORE_V1, Cluster, path
from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.reasons import Reason

log = structlog.get_logger()

EVERY: Final = 10.0
"""Seconds between looks at what is offered; slices are written only where that changed."""
MPS_EVERY: Final = 30.0
STEP_MIB: Final = 512
"""Foreign use is rounded up to this, so that its ups and downs do not rewrite slices."""

Nodes = Callable[[], Mapping[str, Any]]


def foreign_mib(views: Sequence[View], leaving: Collection[str] = ()) -> dict[str, int]:
    """By GPU, memory that shares cannot have, rounded up: held by processes of no container at all.

    Args:
        views: what was just seen.
        leaving: UIDs of pods that have no claim any more, and whose processes live on: theirs counts as well.
    """
    held = {
        view.gpu.uuid: sum(
            holder.used_mib
            for holder in view.holders
            if holder.identity.owner is None or holder.identity.owner.pod_uid in leaving
        )
        for view in views
    }
    return {gpu: -(-mib // STEP_MIB) * STEP_MIB for gpu, mib in held.items() if mib}


def held_mib(quotas: Sequence[Quota]) -> dict[str, int]:
    """By GPU, memory that is promised to containers."""
    held: dict[str, int] = defaultdict(int)
    for quota in quotas:
        held[quota.gpu] += quota.memory_mib
    return dict(held)


class Offering:
    """Publishes what this node has to offer, again and again."""

    def __init__(self, cluster: Cluster, node: str, policy: InventoryPolicy) -> None:
        self._cluster, self._node, self._policy = cluster, node, policy
        self._publisher = SlicePublisher(cluster, node)
        self._said: tuple[LeftOut, ...] = ()
        self.problem: str | None = None
        """Why the offer on the API server may be out of date; ``None`` where it is not."""

    def publish(self, views: Sequence[View], quotas: Sequence[Quota], leaving: Collection[str] = ()) -> None:
        """Make the offer fit what was just seen. What fails is tried again next time."""
        try:
            node = self._cluster.get(path(CORE_V1, "nodes", self._node))
            gpus = shared_gpus([view.gpu for view in views], node)
            found = offer(gpus, self._policy, foreign_mib=foreign_mib(views, leaving), held_mib=held_mib(quotas))
            slices = resource_slices(self._node, found.devices, node["metadata"]["uid"]) if gpus else []
            self._publisher.publish(slices)
        except (ClusterError, ConfigError) as error:
            self._complain(f"GPUs not offered as they are: {error.message}")
            return
        self.problem = None
        self._say(found.left_out)

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("offer not published", reason=str(Reason.INTERNAL), error=problem)
        self.problem = problem

    def _say(self, left_out: tuple[LeftOut, ...]) -> None:
        if left_out != self._said:
            for each in left_out:
                log.warning("GPU not offered", reason=str(Reason.CONFLICT), gpu=each.uuid, why=each.why)
        self._said = left_out


def daemons(gpus: Sequence[Gpu], run: Path, policy: InventoryPolicy, modes: ComputeModes) -> MpsManager:
    """One daemon per GPU that can be shared, each in a short directory of its own: socket paths are short."""
    shared = [gpu for gpu in gpus if not any(out.uuid == gpu.uuid for out in offer([gpu], policy).left_out)]
    return MpsManager(
        {
            gpu.uuid: MpsDaemon(
                gpu.uuid, run / "mps" / str(gpu.index), limit_mib=capacity_mib(gpu, policy), modes=modes
            )
            for gpu in shared
        }
    )


class Shared:
    """Which GPUs of this node may be shared: asked of the node's object, remembered while nobody answers.

    The compute mode of any other GPU is none of our business, so no daemon is ever started for one.
    """

    def __init__(self, cluster: Cluster | None, node: str, gpus: Sequence[Gpu], before: frozenset[str]) -> None:
        self._cluster, self._node, self._gpus, self._known = cluster, node, gpus, before

    def __call__(self) -> frozenset[str]:
        """Name them by UUID; until the node could be read, those that had a daemon before."""
        if self._cluster is None:
            return frozenset(gpu.uuid for gpu in self._gpus)
        with suppress(ClusterError, ConfigError):  # the offer, which reads the same, says what is wrong
            node = self._cluster.get(path(CORE_V1, "nodes", self._node))
            self._known = frozenset(gpu.uuid for gpu in shared_gpus(self._gpus, node))
        return self._known


class MpsKeeper:
    """Looks after the daemons: starts those of shared GPUs, and asks each how it is. Any thread may ask for a turn."""

    def __init__(self, manager: MpsManager, shared: Callable[[], Collection[str]]) -> None:
        self._manager, self._shared = manager, shared
        self._failures: dict[str, GpuShareError] = {}
        self._serving: frozenset[str] = frozenset()
        self._turn = threading.Lock()
        self._turns = 0

    def problems(self) -> Iterator[str]:
        """Say which daemons do not serve, and why."""
        yield from (f"MPS on {gpu}: {error.message}" for gpu, error in self._failures.items())

    def turn(self) -> None:
        """Ask all; start those that do not answer. Who waits for another's turn is content with that one."""
        before = self._turns
        with self._turn:
            if self._turns != before:
                return
            shared = self._shared()
            found = self._manager.health(shared)
            failures = {gpu: answer for gpu, answer in found.items() if isinstance(answer, GpuShareError)}
            blocked = {gpu: error for gpu, error in failures.items() if error.reason is Reason.CONTROL_BLOCKED}
            self._failures = blocked | (self._manager.start(shared) if failures.keys() - blocked.keys() else {})
            self._serving = frozenset(found) - self._failures.keys()
            self._turns += 1

    def hindrance(self, gpu: str) -> str | None:
        """Say what keeps a GPU's daemon from serving now; ``None`` where it serves. A missing one is started."""
        try:
            if gpu in self._serving and self._manager.answers(gpu):
                return None
        except GpuShareError as error:
            return error.message
        self.turn()
        if gpu in self._serving:
            return None
        failure = self._failures.get(gpu)
        return f"{gpu} is not shared on this node" if failure is None else failure.message


def every(
    seconds: float,
    name: str,
    turn: Callable[[], None],
    stopped: threading.Event,
    woken: threading.Event | None = None,
) -> threading.Thread:
    """Do something now and then every so many seconds, in a thread that ends with the process.

    Args:
        seconds: between turns.
        name: of the thread.
        turn: what to do.
        stopped: set when there is to be no other turn.
        woken: set when the next turn is wanted at once.
    """
    thread = threading.Thread(target=partial(_repeat, seconds, turn, stopped, woken or stopped), name=name, daemon=True)
    thread.start()
    return thread


def _repeat(seconds: float, turn: Callable[[], None], stopped: threading.Event, woken: threading.Event) -> None:
    while not stopped.is_set():
        if woken is not stopped:
            woken.clear()
        try:
            turn()
        except Exception:  # a bug in one turn must not end all later ones unseen
            log.exception("a turn failed", reason=str(Reason.INTERNAL), thread=threading.current_thread().name)
        woken.wait(seconds)
