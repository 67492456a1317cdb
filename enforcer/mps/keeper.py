"""Keeping the MPS daemons of shared GPUs in service: slow work, in a thread beside the loop."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from enforcer.inventory import shared_gpus
from enforcer.model import Gpu, Mode
from enforcer.modeswitch import GpuModes
from enforcer.mps.daemon import STANDING
from enforcer.mps.manager import MpsManager
from gpushare.cluster import CORE_V1, Cluster, path
from gpushare.errors import ClusterError, ConfigError, GpuShareError

EVERY: Final = 30.0
"""Seconds between looks at every daemon: a command costs milliseconds of CPU."""
FRESH: Final = 2.0


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
        modes: how they are shared; only through MPS takes a daemon.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        node: str,
        gpus: Sequence[Gpu],
        before: frozenset[str],
        contested: Callable[[Sequence[Gpu]], Collection[str]] = lambda _: (),
        modes: GpuModes | None = None,
    ) -> None:
        self._cluster, self._node, self._gpus, self._known = cluster, node, gpus, before
        self._contested, self._modes = contested, modes or GpuModes.fixed()

    def __call__(self) -> frozenset[str]:
        """Name those that take a daemon, by UUID; until the node could be read, those that had one before."""
        named = self._named() - frozenset(self._contested(self._gpus))
        return frozenset(gpu for gpu in named if self._modes.of(gpu) is Mode.MPS)

    def _named(self) -> frozenset[str]:
        if self._cluster is None:
            return frozenset(gpu.uuid for gpu in self._gpus)
        with suppress(ClusterError, ConfigError):  # the offer, which reads the same, says what is wrong
            node = self._cluster.get(path(CORE_V1, "nodes", self._node))
            self._modes.read(node)
            self._known = frozenset(gpu.uuid for gpu in shared_gpus(self._gpus, node))
        return self._known


class MpsKeeper:
    """Looks after the daemons: starts those of shared GPUs, and asks each how it is. Any thread may ask for a turn.

    Args:
        manager: of the daemons.
        shared: asked which GPUs are.
        fresh: seconds for which it counts that a daemon served. Asking is a process each time, and many pods start
            together.
        modes: how GPUs are shared; a daemon goes when its GPU is shared in another way.
    """

    def __init__(
        self,
        manager: MpsManager,
        shared: Callable[[], Collection[str]],
        fresh: float = FRESH,
        modes: GpuModes | None = None,
    ) -> None:
        self._manager, self._shared, self._fresh = manager, shared, fresh
        self._modes = modes or GpuModes.fixed()
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
            ended = self._end()
            found = self._manager.health(shared)
            failures = {gpu: answer for gpu, answer in found.items() if isinstance(answer, GpuShareError)}
            blocked = {gpu: error for gpu, error in failures.items() if error.reason in STANDING}
            again = self._failures.keys()
            started = self._manager.start(shared) if failures.keys() - blocked.keys() else {}
            self._failures = ended | blocked | started
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

    def _end(self) -> dict[str, GpuShareError]:
        """End the daemons of GPUs that are shared in another way by now; by UUID, what went wrong with which."""
        failures: dict[str, GpuShareError] = {}
        for gpu in self._changed(self._manager.marked()):
            # A claim that is prepared meanwhile has to wait for the end: it must not be given a daemon that goes.
            with self._modes.kept([gpu]) as modes:
                if self._changed(modes):
                    failures |= self._manager.end(gpu)
        return failures

    def _changed(self, gpus: Iterable[str]) -> list[str]:
        return [gpu for gpu in gpus if self._modes.of(gpu) not in {None, Mode.MPS}]

    def _hindrance(self, gpu: str) -> str | None:
        if self._changed([gpu]):
            return self._remains(gpu)
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

    def _remains(self, gpu: str) -> str | None:
        """Say that a GPU's daemon has not gone yet: while it is there, nobody but its clients may use the GPU."""
        if gpu in self._manager.marked():
            self.turn()
        return f"the MPS daemon of {gpu} has not ended yet" if gpu in self._manager.marked() else None
