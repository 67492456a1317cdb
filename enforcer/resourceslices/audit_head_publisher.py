"""Where the audit log stands, kept off the node: in an annotation of the node's own ResourceSlice.

A truncated or rewritten log still verifies by itself; it no longer matches the anchor. A write of a slice wakes every
scheduler, so the annotation follows kills at once and all else slowly, and never goes back: the API server refuses
that of an enforcer (``policy-slices.yaml``), and an enforcer that finds its log behind the annotation says so.
"""

import math
from typing import Final

import structlog

from enforcer.audit.log import AuditLog
from enforcer.audit.record import GENESIS, ChainHead, published_head
from enforcer.resourceslices.publisher import slices_of
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.status.events import EventRecorder, NodeEvent
from gpushare.contract import AUDIT_HEAD
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()

EVERY: Final = 30.0
"""Seconds between looks; what is no kill waits for the next."""
GAP: Final = 3.0
"""Seconds between two writes at least, and between two questions whether a look is due."""
REMOVE: Final = f"kubectl annotate resourceslice {{slice}} {AUDIT_HEAD}-"


class AnchorPublisher:
    """Keeps one node's annotation at the head of its audit log.

    Args:
        cluster: where the slices are.
        node: whose.
        audit_log: the log.
        events: take an Event where the log lacks what the annotation names.
    """

    def __init__(
        self,
        cluster: KubeClient,
        node: str,
        audit_log: AuditLog,
        events: EventRecorder,
        clock: Clock = CLOCK,
    ) -> None:
        self._cluster, self._node, self._log, self._events = cluster, node, audit_log, events
        self._clock, self._looked, self._wrote = clock, -math.inf, -math.inf
        self._written: ChainHead | None = None
        self.lost: str | None = None
        """That the log lacks the record that the annotation names; ``None`` where it does not."""
        self.problem: str | None = None
        """Why the annotation cannot be written; ``None`` where it can, or there is no slice to bear it."""

    def run_once(self) -> None:
        """Bring the annotation up to the log if that is due: after a pressing record, or after a while."""
        now = self._clock.monotonic()
        if now - self._wrote >= GAP and (self._log.pressing.noted.is_set() or now - self._looked >= EVERY):
            self._looked = now
            self._log.pressing.noted.clear()
            self.publish()

    def publish(self) -> None:
        """Bring the annotation up to the log. What fails is tried again next time."""
        try:
            wrote = self._write_if_behind(self._log.head)
        except ClusterError as error:
            self._report_problem(error.reason, f"the enforcer cannot write the audit log's anchor: {error.message}")
        except OSError as error:
            self._report_problem(Reason.AUDIT_UNWRITABLE, f"the enforcer cannot read the audit log: {error}")
        else:
            if wrote:
                self._wrote = self._clock.monotonic()

    def _write_if_behind(self, head: ChainHead) -> bool:
        """Write the annotation where it is behind. Returns whether it was."""
        slices = slices_of(self._cluster, self._node)
        heads = {name: seen for name, item in slices.items() if (seen := published_head(item)) is not None}
        strange = next((name for name, seen in heads.items() if not self._knows(seen)), None)
        if strange is not None:
            self._report_loss(strange, heads[strange])
            return False
        self.problem = self.lost = None
        if not slices or head in {GENESIS, *heads.values()}:
            return False
        change = {"metadata": {"annotations": {AUDIT_HEAD: str(head)}}}
        self._cluster.patch(path(RESOURCE_V1, "resourceslices", min(slices)), change)
        self._written = head
        return True

    def _knows(self, seen: ChainHead) -> bool:
        """Tell whether the log holds a record. What we wrote ourselves is not looked for: it only grew since."""
        return seen == self._written or self._log.contains(seen)

    def _report_loss(self, name: str, seen: ChainHead) -> None:
        problem = (
            f"record {seen.seq} of this node's audit log is not the one that ResourceSlice {name} has as its anchor: "
            "the log was cut, replaced or changed, and gpu-share audit verify says where; to set a new anchor, run "
            f"{REMOVE.format(slice=name)}"
        )
        if problem != self.lost:
            self._events.record_on_node(NodeEvent(Reason.AUDIT_RECORD_LOST, problem))
        self.lost, self.problem = problem, None

    def _report_problem(self, reason: Reason, problem: str) -> None:
        if problem != self.problem:
            log.warning("audit log not anchored", reason=str(reason), error=problem)
        self.problem = problem
