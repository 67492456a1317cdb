"""What a kill does to one process: terminate its MPS client, send a signal, wait.

Killing a live MPS client can harm its neighbours. So no signal is sent before the MPS server has terminated the client,
or has refused so often that a tenant could hide behind it.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.procfs import PidHandle
from enforcer.kill.pidfd_target import PinnedProcess
from gpushare import defaults
from gpushare.errors import MpsError
from gpushare.reasons import Reason

log = structlog.get_logger()

REFUSALS: Final = 3
"""Times that MPS may refuse to terminate a container's client before signals are sent all the same."""
MAX_REFUSED: Final = 1024
MAX_UNKILLABLE: Final = 64
"""So many are remembered; each costs a descriptor."""
_STEPS: Final[dict[bool | Reason | None, str]] = {
    True: "terminate_client", False: "terminate_client refused",
    Reason.MPS_CONTROL_BLOCKED: str(Reason.MPS_CONTROL_BLOCKED),
}  # fmt: skip


class MpsClient(Protocol):
    """The MPS daemons of this node, as far as terminating one of their clients goes."""

    def terminate(self, pid: int, gpu: str | None, ended: Callable[[], bool]) -> bool | None:
        """Have the server of a GPU (``None``: of any) terminate a client.

        Args:
            pid: the client.
            gpu: whose server.
            ended: whether the pinned process has ended; asked up to the moment the command is sent. From then on the
                pid may be another client's.

        Returns:
            True: terminated; false: refused; ``None``: the process is no MPS client.

        Raises:
            MpsError: no answer; taken as a refusal. ``MpsControlBlocked``: nor at the third attempt.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTimeouts:
    """Seconds to wait after SIGTERM and after SIGKILL, and how many rounds a kill has for new processes.

    After ``total`` seconds no other process is added: a round that has begun is finished.
    """

    term: float = defaults.TERMINATION_TIMEOUT
    kill: float = 5.0
    rounds: int = 5
    total: float = 30.0


class ProcessKiller:
    """Kills pinned processes. Safe to use from several threads, each with processes of its own.

    Args:
        mps: terminates clients.
    """

    def __init__(self, mps: MpsClient) -> None:
        self._mps = mps
        self._lock = threading.Lock()
        self.unkillable: Final[dict[Identity, PidHandle]] = {}
        """Processes that SIGKILL did not end: it stays pending, so they are not signalled again."""
        self._refused: Counter[ContainerRef | None] = Counter()
        """Refusals of MPS by container: a tenant has as many processes as it likes to be refused."""

    def terminate_mps_client(self, process: PinnedProcess, gpu: str) -> bool:
        """Terminate the MPS client of a process; false where MPS refuses, and signals have to wait for another kill."""
        answer = None if process.handle.ended() else self._terminate(process.handle, gpu)
        process.steps.extend([_STEPS[answer]] if answer in _STEPS else [])
        if answer is not False or self._refused_enough(process.identity.owner):
            return True
        process.finish(Reason.TERMINATE_FAILED)
        return False

    def signal_and_wait(self, processes: Sequence[PinnedProcess], number: signal.Signals, seconds: float) -> None:
        """Send a signal to all, then wait for all together. Sets the result of each that has ended."""
        sent = [each for each in processes if self._send(each, number)]
        until = time.monotonic() + seconds
        for each in sent:
            if each.handle.ended(max(0.0, until - time.monotonic())):
                self._exited(each)

    def give_up(self, process: PinnedProcess) -> None:
        """Set the result of a process that SIGKILL has not ended, and keep it pinned until it ends."""
        process.finish(Reason.UNKILLABLE)
        if len(self.unkillable) >= MAX_UNKILLABLE:
            return
        try:
            handle = process.handle.duplicate()
        except OSError as error:  # it will be signalled again, which does it no more harm
            log.warning("process cannot be pinned", reason=str(Reason.INTERNAL), error=str(error))
            return
        with self._lock:
            self.unkillable[process.identity] = handle

    def unkillable_pids(self) -> frozenset[tuple[int, int]]:
        """Return pid and start of the unkillable processes that are still alive, and forget the others."""
        with self._lock:
            for identity, handle in tuple(self.unkillable.items()):
                if handle.ended():
                    handle.close()
                    del self.unkillable[identity]
            return frozenset((identity.pid, identity.start) for identity in self.unkillable)

    def _send(self, process: PinnedProcess, number: signal.Signals) -> bool:
        """Send a signal; return whether to wait for it."""
        if number is signal.SIGTERM and process.handle.ignores(number):
            return False
        try:
            sent = process.handle.send(number)
        except PermissionError:
            process.steps.append(f"{number.name} not permitted")
            process.finish(Reason.UNKILLABLE)
            return False
        if sent:
            process.steps.append(number.name)
        else:
            self._exited(process)
        return sent

    def _exited(self, process: PinnedProcess) -> None:
        self._refused.pop(process.identity.owner, None)
        process.finish(Reason.KILLED if process.acted_on else Reason.ALREADY_EXITED)

    def _refused_enough(self, owner: ContainerRef | None) -> bool:
        """Count a refusal. After a few, signals are sent all the same: any tenant can make its daemon refuse."""
        if len(self._refused) > MAX_REFUSED:
            self._refused.clear()
        enough = self._refused[owner] >= REFUSALS - 1
        self._refused[owner] += not enough
        return enough

    def _terminate(self, handle: PidHandle, gpu: str) -> bool | Reason | None:
        try:
            return self._mps.terminate(handle.pid, gpu, handle.ended)
        except MpsError as error:
            log.warning("MPS client not terminated", reason=str(error.reason), pid=handle.pid, error=error.message)
            return error.reason if error.reason is Reason.MPS_CONTROL_BLOCKED else False
