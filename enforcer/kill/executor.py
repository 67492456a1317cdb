"""Execute kill decisions. The phases of one kill are in ``enforcer.kill.container_kill``."""

from dataclasses import dataclass, replace

from enforcer.attribution.container_names import ContainerNames
from enforcer.attribution.container_processes import ProcessTable
from enforcer.attribution.snapshot import ProcessUsage, total_mib
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.writer import AuditWriter
from enforcer.detection.hidden_memory import HiddenMemory
from enforcer.detection.types import KillDecision
from enforcer.kill.circuit_breaker import GuardedQuotas
from enforcer.kill.container_kill import ContainerKill
from enforcer.kill.pidfd_target import PidfdPinner
from enforcer.kill.process_kill import KillTimeouts, ProcessKiller
from enforcer.kill.recheck import Rechecker
from enforcer.kill.report import KillReporter, KillResult, summarize
from enforcer.quota.types import OnExceed
from enforcer.status.events import EventRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class KillDependencies:
    """What a kill needs of the node."""

    usage: UsageSampler | HiddenMemory
    quotas: GuardedQuotas
    processes: ProcessTable
    audit_log: AuditWriter
    killer: ProcessKiller
    events: EventRecorder
    containers: ContainerNames | None = None
    """``None``: no termination message is written."""


class KillExecutor:
    """Executes kill decisions. Safe to use from several threads, each with a decision of its own."""

    def __init__(self, node: str, parts: KillDependencies, timeouts: KillTimeouts | None = None) -> None:
        self._processes, self._timeouts = parts.processes, timeouts or KillTimeouts()
        self._pinner, self._rechecker = PidfdPinner(parts.processes), Rechecker(parts.usage, parts.quotas)
        self._killer = parts.killer
        self._reporter = KillReporter(node, parts.audit_log, parts.events, self._killer, parts.containers)

    def execute(self, decision: KillDecision) -> KillResult:
        """Kill a container's processes, as far as that is still right. Blocks for seconds.

        A container that starts new processes in place of the killed ones is killed whole, under an INTENT of its own.
        After a kill, or without a budget of its namespace, nobody waits after SIGTERM: that time would be one more
        budget.
        """
        if decision.respawns:
            at_once = replace(self._timeouts, term=0.0)
            return self._kill(_whole(decision, decision.targets), at_once).run()
        kill = self._kill(decision)
        result = kill.run()
        if not kill.respawned:
            return result
        again = self._kill(_whole(decision, kill.respawned)).run()
        return summarize(again.reason, (*result.outcomes, *again.outcomes))

    def reap_pending(self) -> None:
        """Write OUTCOME of the kills whose unkillable processes have ended since. Does not wait."""
        self._reporter.reap_pending()

    def _kill(self, decision: KillDecision, timeouts: KillTimeouts | None = None) -> ContainerKill:
        return ContainerKill(
            decision, self._processes, self._pinner, self._rechecker, self._killer, self._reporter,
            timeouts or self._timeouts,
        )  # fmt: skip


def _whole(decision: KillDecision, usages: tuple[ProcessUsage, ...]) -> KillDecision:
    quota = replace(decision.quota, on_exceed=OnExceed.KILL_CONTAINER)
    return replace(decision, quota=quota, targets=usages, used_mib=total_mib(usages), respawns=True)
