"""What is done to one process to end it, step by step: MPS lets go of it, SIGTERM, wait, SIGKILL, wait.

Killing a live MPS client can harm its neighbours, so no signal comes before the server's word that it has let go; or
before it has refused so often that a tenant could hide behind that.
"""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.audit.kill_records import touched
from enforcer.kill.pidfd_target import Victim
from gpushare import defaults
from gpushare.errors import MpsError
from gpushare.reasons import Reason

log = structlog.get_logger()

REFUSALS: Final = 3
"""Times that MPS may refuse to let go of a client before signals have to do."""
MAX_REFUSED: Final = 1024
MAX_HUNG: Final = 64
"""So many that do not end are remembered; each costs a descriptor."""
_STEPS: Final[dict[bool | Reason | None, str]] = {
    True: "terminate_client", False: "terminate_client refused",
    Reason.MPS_CONTROL_BLOCKED: str(Reason.MPS_CONTROL_BLOCKED),
}  # fmt: skip
STOPPED: Final = frozenset({Reason.BACK_UNDER_QUOTA, Reason.NVML_UNAVAILABLE, Reason.NOT_ENFORCING})
"""Why a whole container is let be."""
SPARED: Final = frozenset({*STOPPED, Reason.IDENTITY_CHANGED, Reason.PROCESS_HIDDEN, Reason.PROTECTED})
"""Why one process is let be."""
Kin = tuple[Victim, list[str]]
"""A process that dies with another one, and what was done to it."""


def never() -> bool:
    """Nobody holds the process, so nobody can say that it has ended."""
    return False


class MpsClient(Protocol):
    """The MPS daemons of this node, as far as ending one of their clients goes."""

    def terminate(self, pid: int, gpu: str | None = None, ended: Callable[[], bool] = never) -> bool | None:
        """Make the server of that GPU (``None``: of whichever serves it) let go of a client.

        Args:
            pid: the client.
            gpu: which GPU's server.
            ended: whether that process has ended, of somebody who holds it; asked after we took hold of the pid, and
                up to the moment the server is told. From then on the pid may be another client's.

        Returns:
            True where it has, false where it refused, ``None`` where the process is no MPS client.

        Raises:
            MpsError: nobody answered; taken as a refusal. ``MpsControlBlocked``: nor at the third attempt.
        """


class NullMpsClient:
    """No daemon on this node: nobody is a client."""

    def terminate(self, pid: int, gpu: str | None = None, ended: Callable[[], bool] = never) -> None:
        """Say that this process is not a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillTimeouts:
    """How long to wait, in seconds, after SIGTERM and after SIGKILL, and how often to go after new processes.

    After ``total`` nobody else is taken on: a round that has begun comes to its end.
    """

    term: float = defaults.TERMINATION_TIMEOUT
    kill: float = 5.0
    rounds: int = 5
    total: float = 30.0


@dataclass(slots=True)
class ProcessKill:
    """A process on its way: what was done to it, and what came of it; ``None`` so far.

    ``kin``: those that die with it and were not named before, each with what was done to it, added to. Asked before
    each signal: there may be new ones.
    """

    victim: Victim
    steps: list[str] = field(default_factory=list)
    kin: Callable[[], Iterable[Kin]] = tuple
    result: Reason | None = None

    @property
    def spared(self) -> bool:
        """Whether it was let be before anything was done to it."""
        return self.result in SPARED and not touched(self.steps)


class ProcessKiller:
    """Ends processes. Safe to use from several threads, each with processes of its own.

    Args:
        mps: lets go of clients.
        patience: how long to wait.
    """

    def __init__(self, mps: MpsClient, patience: KillTimeouts) -> None:
        self._mps, self._patience = mps, patience
        self._lock = threading.Lock()
        self.hung: Final[dict[Identity, Victim]] = {}
        """Processes that SIGKILL did not end: it stays pending, so they are not signalled again."""
        self._refused: Counter[ContainerRef | None] = Counter()
        """Attempts that MPS refused, by container: a tenant has as many processes as it likes to be refused."""

    def release(self, climb: ProcessKill, gpu: str) -> bool:
        """Have MPS let go of it; false where that is refused, and it gets no signal."""
        released = self._released(climb.victim, gpu, climb.steps)
        if not released:
            climb.result = Reason.TERMINATE_FAILED
        return released

    def climb(self, group: Sequence[ProcessKill], gpu: str, check: Callable[[Sequence[ProcessKill]], None]) -> None:
        """Do what it takes to end processes that MPS let go of, all at the same time: no wait is longer for many.

        Args:
            group: which ones; each is told what came of it.
            gpu: whose MPS server has to let go of those that die with them.
            check: looks at those about to be signalled once more, as MPS may have taken seconds; who has a result
                afterwards is spared.
        """
        for number, wait in ((signal.SIGTERM, self._patience.term), (signal.SIGKILL, self._patience.kill)):
            check([each for each in group if each.result is None and self._kin_released(each, gpu)])
            sent = [each for each in group if each.result is None and self._sent(each, number)]
            until = time.monotonic() + wait
            for each in sent:
                if each.victim.handle.ended(max(0.0, until - time.monotonic())):
                    self._over(each)
        for each in (each for each in group if each.result is None):
            each.result = Reason.UNKILLABLE
            self._let_hang(each.victim)

    def _kin_released(self, each: ProcessKill, gpu: str) -> bool:
        """Have MPS let go of all that die with it; false where that is refused, and it gets no signal either."""
        released = all(self._released(kin, gpu, said) for kin, said in each.kin())
        if not released:
            each.result = Reason.TERMINATE_FAILED
        return released

    def _sent(self, each: ProcessKill, number: signal.Signals) -> bool:
        """Send a signal; whether that is to be waited for."""
        if number is signal.SIGTERM and each.victim.handle.deaf(number):
            return False
        try:
            sent = each.victim.handle.send(number)
        except PermissionError:
            each.steps.append(f"{number.name} not permitted")
            each.result = Reason.UNKILLABLE
            return False
        if sent:
            each.steps.append(number.name)
        else:
            self._over(each)
        return sent

    def _over(self, each: ProcessKill) -> None:
        self._refused.pop(each.victim.holder.identity.owner, None)
        each.result = Reason.KILLED if touched(each.steps) else Reason.ALREADY_EXITED

    def hanging(self) -> frozenset[tuple[int, int]]:
        """Pid and start of those that still do not end. Those that have are forgotten."""
        with self._lock:
            for identity, victim in tuple(self.hung.items()):
                if victim.handle.ended():
                    victim.handle.close()
                    del self.hung[identity]
            return frozenset((identity.pid, identity.start) for identity in self.hung)

    def _let_hang(self, victim: Victim) -> None:
        if len(self.hung) >= MAX_HUNG:
            return
        try:
            held = Victim(victim.holder, victim.handle.again())
        except OSError as error:  # it will be signalled again, which does it no more harm
            log.warning("process cannot be held", reason=str(Reason.INTERNAL), error=str(error))
            return
        with self._lock:
            self.hung[victim.holder.identity] = held

    def _released(self, victim: Victim, gpu: str, steps: list[str]) -> bool:
        """Have MPS let go of a client; false where it refuses, and signals have to wait for another attempt."""
        released = None if victim.handle.ended() else self._terminate(victim, gpu)
        steps.extend([_STEPS[released]] if released in _STEPS else [])
        return released is not False or self._refused_enough(victim.holder.identity.owner)

    def _refused_enough(self, owner: ContainerRef | None) -> bool:
        """Count an attempt that was refused. After a few, signals have to do: any tenant can make its daemon refuse."""
        if len(self._refused) > MAX_REFUSED:
            self._refused.clear()
        enough = self._refused[owner] >= REFUSALS - 1
        self._refused[owner] += not enough
        return enough

    def _terminate(self, victim: Victim, gpu: str) -> bool | Reason | None:
        pid = victim.handle.pid
        try:
            return self._mps.terminate(pid, gpu, victim.handle.ended)
        except MpsError as error:
            log.warning("MPS did not let go of a client", reason=str(error.reason), pid=pid, error=error.message)
            return error.reason if error.reason is Reason.MPS_CONTROL_BLOCKED else False
