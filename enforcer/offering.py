"""Keeping this node's GPUs on offer, and their MPS daemons in service: slow work, in threads beside the loop."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.foreign import Steady, foreign_mib, leaving_mib, steadied
from enforcer.health import Standing
from enforcer.inventory import InventoryPolicy, LeftOut, capacity_mib, offer, resource_slices, shared_gpus
from enforcer.model import Gpu, Quota
from enforcer.mps import PROGRAM, ComputeModes, MpsDaemon
from enforcer.mps_launch import Launcher
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
FRESH: Final = 2.0
Nodes = Callable[[], Mapping[str, Any]]


def held_mib(quotas: Sequence[Quota]) -> dict[str, int]:
    """By GPU, memory that is promised to containers."""
    held: dict[str, int] = defaultdict(int)
    for quota in quotas:
        held[quota.gpu] += quota.memory_mib
    return dict(held)


class Offering:
    """Publishes what this node has to offer, again and again.

    Args:
        cluster: where to.
        node: this node's name.
        policy: the operator's.
        standing: asked at each offer which of these GPUs are contested or ill.
        own: asked for the UIDs of our own pods, whose memory is accounted for.
        servers: asked for the pids of MPS's servers, whose memory is.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        policy: InventoryPolicy,
        standing: Callable[[Sequence[Gpu]], Standing] = lambda _: Standing(),
        own: Callable[[], Collection[str]] = frozenset,
        servers: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._cluster, self._node, self._policy = cluster, node, policy
        self._standing, self._own, self._ask_servers = standing, own, servers
        self._servers: frozenset[int] = frozenset()
        self._foreign: dict[str, Steady] = {}
        self._publisher = SlicePublisher(cluster, node)
        self._said: tuple[LeftOut, ...] = ()
        self.problem: str | None = None
        """Why the offer on the API server may be out of date; ``None`` where it is not."""
        self.offered = False
        """Whether the API server has had our offer since we started."""

    def publish(self, views: Sequence[View], quotas: Sequence[Quota], leaving: Collection[str] = ()) -> None:
        """Make the offer fit what was just seen. What fails is tried again next time."""
        try:
            node = self._cluster.get(path(CORE_V1, "nodes", self._node))
            gpus = shared_gpus([view.gpu for view in views], node)
            found = offer(
                gpus, self._policy, foreign_mib=self._taken(views, quotas, leaving), held_mib=held_mib(quotas),
                standing=self._standing(gpus),
            )  # fmt: skip
            owner = node["metadata"]["uid"]
            slices = resource_slices(self._node, found.devices, owner, found.left_out) if gpus else []
            self._publisher.publish(slices)
        except (ClusterError, ConfigError) as error:
            self._complain(f"GPUs not offered as they are: {error.message}")
            return
        self.problem, self.offered = None, True
        self._say(found.left_out)

    def _taken(self, views: Sequence[View], quotas: Sequence[Quota], leaving: Collection[str]) -> dict[str, int]:
        """Work out, by GPU, what shares cannot have: what is foreign, and what pods on their way out still hold."""
        # A daemon that does not answer still has its server: one known before counts while it holds memory.
        holding = frozenset(holder.identity.pid for view in views for holder in view.holders)
        self._servers = holding & self._servers.union(self._ask_servers())
        seen = foreign_mib(views, quotas, {*self._own(), *leaving}, self._servers)
        self._foreign = steadied(self._foreign, seen)
        left = leaving_mib(views, leaving)
        return {gpu: steady.mib + left.get(gpu, 0) for gpu, steady in self._foreign.items()}

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("offer not published", reason=str(Reason.INTERNAL), error=problem)
        self.problem = problem

    def _say(self, left_out: tuple[LeftOut, ...]) -> None:
        if left_out != self._said:
            for each in left_out:
                log.warning("GPU not offered", reason=str(Reason.CONFLICT), gpu=each.uuid, why=each.why)
        self._said = left_out


@dataclass(frozen=True, slots=True)
class MpsTools:
    """What daemons are run with: NVIDIA's control program, its environment, who starts it, a door to compute modes."""

    modes: ComputeModes
    program: Path = PROGRAM
    environment: Mapping[str, str] | None = None
    launcher: Launcher | None = None


def daemons(gpus: Sequence[Gpu], run: Path, policy: InventoryPolicy, tools: MpsTools) -> MpsManager:
    """One daemon per GPU that can be shared, each in a short directory of its own: socket paths are short."""
    shared = [gpu for gpu in gpus if not any(out.uuid == gpu.uuid for out in offer([gpu], policy).left_out)]
    return MpsManager(
        {
            gpu.uuid: MpsDaemon(
                gpu.uuid,
                run / "mps" / str(gpu.index),
                tools.program,
                limit_mib=capacity_mib(gpu, policy),
                modes=tools.modes,
                environment=tools.environment,
                launcher=tools.launcher,
            )
            for gpu in shared
        }
    )


class Shared:
    """Which GPUs of this node may be shared: asked of the node's object, remembered while nobody answers.

    The compute mode of any other GPU is none of our business, so no daemon is ever started for one. Contested ones are
    among the others: a daemon that runs there goes on for its tenants, and is left as it is.

    Args:
        cluster: to ask for the node's object; ``None``: every GPU may be shared.
        node: its name.
        gpus: all there are.
        before: those that had a daemon when the agent started.
        contested: asked which of these GPUs are, by UUID.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        node: str,
        gpus: Sequence[Gpu],
        before: frozenset[str],
        contested: Callable[[Sequence[Gpu]], Collection[str]] = lambda _: (),
    ) -> None:
        self._cluster, self._node, self._gpus, self._known = cluster, node, gpus, before
        self._contested = contested

    def __call__(self) -> frozenset[str]:
        """Name them by UUID; until the node could be read, those that had a daemon before."""
        return self._named() - frozenset(self._contested(self._gpus))

    def _named(self) -> frozenset[str]:
        if self._cluster is None:
            return frozenset(gpu.uuid for gpu in self._gpus)
        with suppress(ClusterError, ConfigError):  # the offer, which reads the same, says what is wrong
            node = self._cluster.get(path(CORE_V1, "nodes", self._node))
            self._known = frozenset(gpu.uuid for gpu in shared_gpus(self._gpus, node))
        return self._known


class MpsKeeper:
    """Looks after the daemons: starts those of shared GPUs, and asks each how it is. Any thread may ask for a turn.

    Args:
        manager: of the daemons.
        shared: asked which GPUs are.
        fresh: seconds for which it counts that a daemon served. Asking is a process each time, and many pods start
            together.
    """

    def __init__(self, manager: MpsManager, shared: Callable[[], Collection[str]], fresh: float = FRESH) -> None:
        self._manager, self._shared, self._fresh = manager, shared, fresh
        self._answered: dict[str, tuple[float, str | None]] = {}
        """When each was last asked on behalf of a pod, and what kept it from serving."""
        self._asking: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failures: dict[str, GpuShareError] = {}
        self._lasting: dict[str, GpuShareError] = {}
        self._serving = manager.noted()
        """As last asked; those that ran before us are taken to serve until they are asked."""
        self._turn = threading.Lock()
        self._turns = 0

    def serves(self, gpu: str) -> bool:
        """Tell whether the daemon of a GPU took clients when it was last asked."""
        return gpu in self._serving

    @property
    def failures(self) -> Mapping[str, GpuShareError]:
        """By GPU, why its daemon does not serve; of those that failed twice in a row, for one turn says little."""
        return self._lasting

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
            again = self._failures.keys()
            self._failures = blocked | (self._manager.start(shared) if failures.keys() - blocked.keys() else {})
            self._lasting = {gpu: error for gpu, error in self._failures.items() if gpu in again}
            self._serving = frozenset(found) - self._failures.keys()
            self._turns += 1

    def hindrance(self, gpu: str) -> str | None:
        """Say what keeps a GPU's daemon from serving now; ``None`` where it serves. A missing one is started."""
        came = time.monotonic()
        with self._asking[gpu]:
            asked, found = self._answered.get(gpu, (-math.inf, None))
            now = time.monotonic()
            if asked < came and (found is not None or now - asked >= self._fresh):
                found = self._hindrance(gpu)
                self._answered[gpu] = (now, found)
            return found

    def _hindrance(self, gpu: str) -> str | None:
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
