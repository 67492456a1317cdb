"""Pin processes, so that a signal cannot reach any other.

The order is the safety: first a pidfd, then the identity. What /proc shows of a pid is about the pinned process only
if that one is alive afterwards.
"""

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import structlog

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.container_processes import ProcessTable
from enforcer.attribution.procfs import PidHandle
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit import kill_records
from enforcer.audit.kill_records import ProcessOutcome, acted_on
from enforcer.quota.types import Quota
from gpushare.reasons import Reason

log = structlog.get_logger()

INIT: Final = 1
CANCELLED: Final = (Reason.NVML_UNAVAILABLE, Reason.NOT_ENFORCING, Reason.BACK_UNDER_QUOTA)
"""Why the whole container is spared."""
SPARED: Final = frozenset({*CANCELLED, Reason.IDENTITY_CHANGED, Reason.PROCESS_HIDDEN, Reason.PROTECTED})
"""Why one process is spared."""


@dataclass(slots=True)
class KillTarget:
    """A process that a kill concerns: its usage when it was selected, and what was done to it, in order."""

    usage: ProcessUsage
    steps: list[str] = field(default_factory=list)

    @property
    def identity(self) -> Identity:
        """Which process it is."""
        return self.usage.identity

    @property
    def acted_on(self) -> bool:
        """Whether anything was done to it."""
        return acted_on(self.steps)


@dataclass(slots=True, kw_only=True)
class PinnedProcess(KillTarget):
    """A target that a pidfd pins. ``result`` is ``None`` until it is decided what became of it."""

    handle: PidHandle
    result: Reason | None = None

    @property
    def spared(self) -> bool:
        """Whether it was spared before anything was done to it."""
        return self.result in SPARED and not self.acted_on

    def finish(self, result: Reason) -> None:
        """Set what became of it; a later result replaces an earlier one."""
        self.result = result


@dataclass(frozen=True, slots=True)
class PidfdPinner:
    """Pins processes, and compares them with the identity that was selected."""

    processes: ProcessTable

    def pin(
        self, stack: ExitStack, quota: Quota, usages: Sequence[ProcessUsage], exclude: Collection[Identity] = ()
    ) -> tuple[list[PinnedProcess], list[ProcessOutcome]]:
        """Pin processes and check each; return those that still are who they were, and those that have ended.

        When no more files can be opened, the rest waits for the next round.

        Args:
            stack: unpins them.
            quota: of the container that they have to be in.
            usages: of the processes to pin.
            exclude: of these, which not.
        """
        pinned: list[PinnedProcess] = []
        exited: list[ProcessOutcome] = []
        for usage in (each for each in usages if each.identity not in exclude):
            try:
                handle = self.processes.pin(usage.identity.pid)
            except OSError as error:
                log.warning("process cannot be pinned", reason=str(Reason.INTERNAL), error=str(error))
                break
            if handle is None:
                exited.append(kill_records.process_outcome(usage, Reason.ALREADY_EXITED))
                continue
            process = PinnedProcess(usage, handle=stack.enter_context(handle))
            mismatch = self.identity_mismatch(quota, process)
            if mismatch is None:
                pinned.append(process)
            elif mismatch is Reason.ALREADY_EXITED:
                exited.append(kill_records.process_outcome(usage, mismatch))
            else:
                log.warning("process spared", reason=str(mismatch), pid=usage.identity.pid, container=quota.container)
        return pinned, exited

    def identity_mismatch(self, quota: Quota, process: PinnedProcess) -> Reason | None:
        """Return why a process must not be killed; ``None``: it is the selected one, and in this container.

        What /proc shows is about the pinned process only if that one is alive afterwards.
        """
        identity = self.processes.identify(process.identity.pid)
        if process.handle.ended():
            return Reason.ALREADY_EXITED
        if identity is None:
            return Reason.PROCESS_HIDDEN
        if is_protected(identity):
            return Reason.PROTECTED
        if identity != process.identity or not _is_within(identity, quota):
            return Reason.IDENTITY_CHANGED
        return None


def _is_within(identity: Identity, quota: Quota) -> bool:
    """Whether a process is in the container of a quota, or in the pod where the quota is of the whole pod."""
    owner = identity.owner
    if owner is None or owner.pod_uid != quota.pod_uid:
        return False
    return quota.whole_pod or quota.container_id == owner.container_id


def is_protected(identity: Identity) -> bool:
    """Return whether a process must never be killed: the enforcer, init, a kernel thread, one in no container."""
    ours = identity.pid in {os.getpid(), os.getppid()}
    return ours or identity.pid <= INIT or identity.kernel_thread or identity.owner is None
