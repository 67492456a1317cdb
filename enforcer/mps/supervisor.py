"""Keeping the MPS daemons of shared GPUs in service: slow work, in threads beside the loop, each GPU by itself."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from enforcer.mps.daemon import STANDING
from enforcer.mps.desired_daemons import DaemonPlanner
from enforcer.mps.manager import MpsManager, side_by_side
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from gpushare.errors import GpuShareError, NvmlError
from gpushare.reasons import Reason

log = structlog.get_logger()

EVERY: Final = 30.0
"""Seconds between looks at every daemon: a command costs milliseconds of CPU."""
FRESH: Final = 2.0


class MpsSupervisor:
    """Looks after the daemons: starts those of shared GPUs, asks each how it is, ends those that are needed no more.

    Any thread may ask. Each GPU has a lock of its own: one whose daemon is blocked keeps nobody waiting for another's.

    Args:
        manager: of the daemons.
        roster: says who needs one.
        fresh: seconds for which it counts that a daemon served. Asking is a process each time, and many pods start
            together.
    """

    def __init__(self, manager: MpsManager, roster: DaemonPlanner, fresh: float = FRESH) -> None:
        self._manager, self._roster, self._fresh = manager, roster, fresh
        self._answered: dict[str, tuple[float, str | None]] = {}
        """When each was last asked on behalf of a pod, and what kept it from serving."""
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failures: dict[str, GpuShareError] = {}
        self._lasting: dict[str, GpuShareError] = {}
        self._served: frozenset[str] = frozenset()
        self._serving = dict.fromkeys(roster.before, True)
        """As last asked; those that ran before us are taken to serve until they are asked."""

    def is_ready(self, gpu: str) -> bool:
        """Tell whether the daemon of a GPU took clients when it was last asked."""
        return self._serving.get(gpu, False)

    @property
    def failures(self) -> Mapping[str, GpuShareError]:
        """By GPU, why its daemon does not serve; of those that failed twice in a row, for one turn says little."""
        return self._lasting

    @property
    def all_stopped(self) -> bool:
        """Whether no daemon is left, nor a compute mode that one has yet to give back."""
        return not self._manager.marked() and not self._roster.before

    def problems(self) -> Iterator[str]:
        """Say which daemons do not serve, and why."""
        if self._roster.problem is not None:
            yield f"the enforcer cannot supervise the MPS daemons: {self._roster.problem}"
        yield from (f"MPS on {gpu}: {error.message}" for gpu, error in dict(self._failures).items())

    def run_once(self) -> None:
        """Ask all; start those that do not answer; end those whose time is over."""
        duty, again = self._roster.plan(), frozenset(self._failures)
        self._served = duty.served
        for gpu in again - duty.served:
            self._failures.pop(gpu, None)
        side_by_side(lambda gpu: self._supervise_gpu(gpu, leaving=gpu in duty.leaving), duty.served | duty.leaving)
        self._lasting = {gpu: error for gpu, error in dict(self._failures).items() if gpu in again}

    def not_ready_reason(self, gpu: str) -> str | None:
        """Say what keeps a GPU's daemon from serving now; ``None`` where it serves. A missing one is started."""
        came = time.monotonic()
        with self._locks[gpu]:
            self._roster.used(gpu)
            asked, found = self._answered.get(gpu, (-math.inf, None))
            now = time.monotonic()
            if asked < came and (found is not None or now - asked >= self._fresh):
                found = self._not_ready_reason(gpu)
                self._answered[gpu] = (now, found)
            return found

    def _not_ready_reason(self, gpu: str) -> str | None:
        if self._roster.changed(gpu):
            return self._remains(gpu)
        try:
            if self.is_ready(gpu) and self._manager.answers(gpu):
                return None
        except GpuShareError as error:
            return error.message
        if gpu not in self._served:
            self._served = self._roster.plan().served
        if gpu not in self._served or not self._supervise(gpu):
            return (
                self._roster.problem or f"the enforcer runs no MPS daemon for {gpu}; run gpu-share check for the cause"
            )
        failure = self._failures.get(gpu)
        return None if failure is None else failure.message

    def _supervise_gpu(self, gpu: str, *, leaving: bool) -> None:
        with self._locks[gpu]:
            (self._leave if leaving else self._supervise)(gpu)

    def _supervise(self, gpu: str) -> bool:
        """Ask a daemon, and start it where it does not answer; whether there is one."""
        found = self._manager.health({gpu})
        if gpu not in found:
            return False
        answer = found[gpu]
        failure = answer if isinstance(answer, GpuShareError) else None
        if failure is not None and failure.reason not in STANDING:
            failure = self._manager.start({gpu}).get(gpu)
        self._serving[gpu] = failure is None
        if failure is None:
            self._failures.pop(gpu, None)
        else:
            self._failures[gpu] = failure
        return True

    def _remains(self, gpu: str) -> str | None:
        """Say that a GPU's daemon has not gone yet: while it is there, nobody but its clients may use the GPU."""
        if gpu in self._roster.before and gpu not in self._manager.daemons:
            self._roster.plan()
        if gpu in self._manager.marked():
            self._leave(gpu)
        left = gpu in self._manager.marked() or (gpu in self._roster.before and gpu not in self._manager.daemons)
        return f"the previous MPS daemon of {gpu} has not stopped yet" if left else None

    def _leave(self, gpu: str) -> None:
        with self._roster.leaving(gpu) as so:
            if so:
                self._end(gpu)

    def _end(self, gpu: str) -> None:
        try:
            self._manager.stop({gpu})
        except GpuShareError as error:
            if not (isinstance(error, NvmlError) and self._roster.gone(gpu)):
                self._failures[gpu] = error
                return
            log.warning("compute mode not restored", reason=str(error.reason), gpu=gpu, error=error.message)
        self._manager.remove(gpu)
        self._roster.forget(gpu)
        self._served -= {gpu}
        for known in (self._serving, self._failures, self._answered):
            known.pop(gpu, None)
        log.info("MPS daemon ended: its GPU no longer needs a daemon", reason=str(Reason.MPS_STOPPED), gpu=gpu)


def takes_clients(modes: SharingModeController, keeper: MpsSupervisor | None, gpu: str) -> bool:
    """Say whether shares of a GPU can be used: of one shared through MPS once its daemon takes clients."""
    return modes.of(gpu) in {Mode.TIME_SLICING, Mode.MIG} or keeper is None or keeper.is_ready(gpu)
