"""What is done to one process to end it, step by step: MPS lets go of it, SIGTERM, wait, SIGKILL, wait.

Killing a live MPS client can harm its neighbours, so no signal comes before the server's word that it has let go; or
before it has refused so often that a tenant could hide behind that.
"""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from enforcer.attribute import Identity, Owner
from enforcer.hold import Victim
from gpushare.errors import MpsError
from gpushare.reasons import Reason

log = structlog.get_logger()

REFUSALS: Final = 3
"""Times that MPS may refuse to let go of a client before signals have to do."""
MAX_REFUSED: Final = 1024
MAX_HUNG: Final = 64
"""So many that do not end are remembered; each costs a descriptor."""
_STEPS: Final[dict[bool | Reason | None, str]] = {
    True: "terminate_client", False: "terminate_client refused", Reason.CONTROL_BLOCKED: str(Reason.CONTROL_BLOCKED),
}  # fmt: skip
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
            MpsError: nobody answered; taken as a refusal. ``ControlBlocked``: nor at the third attempt.
        """


class NoMps:
    """No daemon on this node: nobody is a client."""

    def terminate(self, pid: int, gpu: str | None = None, ended: Callable[[], bool] = never) -> None:
        """Say that this process is no client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds, after SIGTERM and after SIGKILL, and how often to go after new processes."""

    term: float = 2.0
    kill: float = 5.0
    rounds: int = 5


class Ladder:
    """Ends processes. Safe to use from several threads, each with processes of its own.

    Args:
        mps: lets go of clients.
        patience: how long to wait.
    """

    def __init__(self, mps: MpsClient, patience: Patience) -> None:
        self._mps, self._patience = mps, patience
        self._lock = threading.Lock()
        self.hung: Final[dict[Identity, Victim]] = {}
        """Processes that SIGKILL did not end: it stays pending, so they are not signalled again."""
        self._refused: Counter[Owner | None] = Counter()
        """Attempts that MPS refused, by container: a tenant has as many processes as it likes to be refused."""

    def climb(self, victim: Victim, gpu: str, steps: list[str], kin: Callable[[], Iterable[Kin]]) -> Reason:
        """Do what it takes to end a process; returns what came of it.

        Args:
            victim: which one.
            gpu: whose MPS server has to let go of it.
            steps: what was done to it, added to.
            kin: those that die with it and were not named before, each with what was done to it, added to. Asked
                before each signal: there may be new ones.
        """
        if not self._released(victim, gpu, steps):
            return Reason.TERMINATE_FAILED
        for number, wait in ((signal.SIGTERM, self._patience.term), (signal.SIGKILL, self._patience.kill)):
            if not all(self._released(each, gpu, said) for each, said in kin()):
                return Reason.TERMINATE_FAILED
            if number is signal.SIGTERM and victim.handle.deaf(number):
                continue
            try:
                sent = victim.handle.send(number)
            except PermissionError:
                steps.append(f"{number.name} not permitted")
                return Reason.UNKILLABLE
            if sent:
                steps.append(number.name)
            if not sent or victim.handle.ended(wait):
                self._refused.pop(victim.holder.identity.owner, None)
                return Reason.KILLED if steps else Reason.GONE
        self._let_hang(victim)
        return Reason.UNKILLABLE

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

    def _refused_enough(self, owner: Owner | None) -> bool:
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
            return error.reason if error.reason is Reason.CONTROL_BLOCKED else False
