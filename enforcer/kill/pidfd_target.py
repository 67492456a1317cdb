"""Taking hold of processes, so that a signal can reach nobody else.

The order is the safety: first a pidfd, then who it is. What /proc says of a pid is about the process held only if that
one is still there afterwards.
"""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import structlog

from enforcer.attribution.cgroup import Attributor, ContainerRef, Identity
from enforcer.attribution.procfs import PidHandle
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit import kill_records
from enforcer.audit.kill_records import ProcessOutcome
from enforcer.quota.types import Quota
from gpushare.reasons import Reason

log = structlog.get_logger()

INIT: Final = 1


@dataclass(frozen=True, slots=True)
class Victim:
    """A process we hold on to, and what it held when it was judged."""

    holder: ProcessUsage
    handle: PidHandle


class PidfdPinner:
    """Takes hold of processes and tells whether they are who they are taken for.

    Args:
        attributor: says who a process is.
        open_handle: takes hold of whatever has a pid.
    """

    def __init__(self, attributor: Attributor, open_handle: Callable[[int], PidHandle | None]) -> None:
        self._attributor, self._open = attributor, open_handle

    def take(
        self, stack: ExitStack, quota: Quota, holders: Sequence[ProcessUsage], but: Collection[Identity] = ()
    ) -> tuple[list[Victim], list[ProcessOutcome]]:
        """Take hold of processes and check each: those that are still who they were, and those that have ended.

        Where no more can be held at once, the rest is left for the next round.

        Args:
            stack: lets go of them.
            quota: of the container that they have to be in.
            holders: whom to take.
            but: of these, whom not to.
        """
        victims: list[Victim] = []
        gone: list[ProcessOutcome] = []
        for holder in (each for each in holders if each.identity not in but):
            try:
                handle = self._open(holder.identity.pid)
            except OSError as error:
                log.warning("process cannot be held", reason=str(Reason.INTERNAL), error=str(error))
                break
            if handle is None:
                gone.append(kill_records.process_outcome(holder, Reason.ALREADY_EXITED))
                continue
            victim = Victim(holder, stack.enter_context(handle))
            why = self.mistaken(quota, victim)
            if why is None:
                victims.append(victim)
            elif why is Reason.ALREADY_EXITED:
                gone.append(kill_records.process_outcome(holder, why))
            else:
                log.warning("process spared", reason=str(why), pid=holder.identity.pid, container=quota.container)
        return victims, gone

    def mistaken(self, quota: Quota, victim: Victim) -> Reason | None:
        """Why this must not be touched; ``None`` where it is the very process that was judged, and of this container.

        What /proc says is only then about the process we hold if that one is still there afterwards.
        """
        identity = self._attributor.identify(victim.holder.identity.pid)
        if victim.handle.ended():
            return Reason.ALREADY_EXITED
        if identity is None:
            return Reason.PROCESS_HIDDEN
        if is_protected(identity):
            return Reason.PROTECTED
        if identity != victim.holder.identity or identity.owner != ContainerRef(
            quota.pod_uid, quota.container_id or ""
        ):
            return Reason.IDENTITY_CHANGED
        return None


def is_protected(identity: Identity) -> bool:
    """Whether this is somebody we never touch, whatever any list says: ourselves, init, the kernel, nobody's."""
    ours = identity.pid in {os.getpid(), os.getppid()}
    return ours or identity.pid <= INIT or identity.kernel_thread or identity.owner is None
