"""Build the audit log and what publishes its head. ``enforcer/build.py`` calls it."""

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import Final

from enforcer.audit.log import FOLDER, AuditLog
from enforcer.audit.verification import LOOK, LogVerifier
from enforcer.audit.writer import AuditWriter, open_or_warn
from enforcer.kill.circuit_breaker import OPEN, opened_at, opened_for
from enforcer.resourceslices.audit_head_publisher import GAP, AnchorPublisher
from enforcer.resourceslices.enforcer_report import EnforcerState
from enforcer.runtime.lock import StateLock
from enforcer.runtime.logs import NonBlockingStream
from enforcer.runtime.manager import Manager
from enforcer.status.events import EventRecorder
from enforcer.status.metrics import Metrics
from gpushare.kube_client import KubeClient
from gpushare.reasons import Reason

SLICES: Final = "slices"
"""The thread of tasks that wait for the API server, the kubelet, NVML, and the disk of the state directory."""


@dataclass(frozen=True, slots=True)
class AuditParts:
    """The audit log of one node."""

    node: str
    records: AuditLog
    writer: AuditWriter
    verifier: LogVerifier

    def verify(self, manager: Manager, thread: str) -> None:
        """Verify the log at the start, once a day, and when somebody changed it."""
        manager.add_problem_check(lambda: self.verifier.problem, Reason.AUDIT_BROKEN)
        manager.add_problem_check(lambda: self.verifier.unwritable, Reason.AUDIT_UNWRITABLE)
        manager.add("audit-verification", self.verifier.run_once, every=LOOK, thread=thread)

    def publish_head(self, manager: Manager, cluster: KubeClient, events: EventRecorder) -> AnchorPublisher:
        """Keep the log's head in an annotation of the node's ResourceSlices. Returns who does."""
        anchor = AnchorPublisher(cluster, self.node, self.records, events)
        manager.add_problem_check(lambda: anchor.problem, Reason.API_UNREACHABLE)
        manager.add_problem_check(lambda: anchor.lost, Reason.AUDIT_RECORD_LOST)
        manager.add("anchor", anchor.run_once, every=GAP, wake=self.records.pressing.wake, thread=SLICES)
        return anchor

    def reported(self, options: argparse.Namespace, metrics: Metrics, anchor: AnchorPublisher) -> EnforcerState:
        """Return what this enforcer reports of itself. Raises OSError where its state directory cannot be read."""
        unwritten = self.writer.problem or self.records.shortage
        found = unwritten, self.verifier.unwritable, self.verifier.problem, anchor.lost
        audit_log = tuple(each for each in found if each is not None)
        problems = metrics.latest.status.get("problems", ())
        return EnforcerState(
            enforcing=not options.no_enforce,
            breaker=opened_at(options.state),
            breaker_reason=opened_for(options.state),
            audit_log=audit_log,
            problems=tuple(each for each in problems if each not in {OPEN, *audit_log}),
        )


def build_audit_log(options: argparse.Namespace, manager: Manager, lock: StateLock) -> AuditParts:
    """Build the audit log and add it to the manager."""
    copy = NonBlockingStream(sys.stdout) if options.audit_to == "stdout" else None
    records = AuditLog(options.state / FOLDER, retention=options.retention, copy=copy)
    writer = AuditWriter(records, options.node, lock=lock)
    manager.add_server("audit log", partial(open_or_warn, writer), writer.close)
    manager.add_problem_check(lambda: records.shortage, Reason.AUDIT_UNWRITABLE)
    manager.add_problem_check(lambda: writer.problem, Reason.AUDIT_UNWRITABLE)
    verifier = LogVerifier(options.state / FOLDER, records)
    return AuditParts(options.node, records, writer, verifier)
