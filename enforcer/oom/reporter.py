"""Hears of containers that failed and says why that probably was: to their owners what is theirs, to operators all."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import structlog

from enforcer.oom.diagnosis import Failure, diagnose, diagnosis_message, failures_of
from enforcer.oom.memory_pressure import Marks, PressureSample, update_pressure
from enforcer.quota.from_claims import Object
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from enforcer.status.metrics import Metrics
from enforcer.status.node_status import Snapshot
from enforcer.status.pod_status import Seen

log = structlog.get_logger()

KEPT: Final = 32
"""Findings shown to operators, the last ones."""
MAX_KNOWN: Final = 4096
NAMED: Final = 8
"""Holders named in one finding."""


class OomReporter:
    """Listens to the watch on pods, and looks at what the loop sees.

    Args:
        events: takes messages for tenants.
        metrics: counted there.
    """

    def __init__(self, events: EventRecorder, metrics: Metrics, clock: Clock = CLOCK) -> None:
        self._events, self._metrics, self._clock = events, metrics, clock
        self._lock = threading.Lock()
        self._marks: Marks = {}
        self._known: dict[str, None] = {}
        """Container ids of failures that were looked into, oldest first."""
        self._found: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def observe(self, snapshot: Snapshot) -> None:
        """Note who is short of memory now."""
        with self._lock:
            self._marks = update_pressure(self._marks, Seen.of(snapshot), self._clock.wall())

    def findings(self) -> tuple[dict[str, Any], ...]:
        """What was found lately, with names: for operators."""
        with self._lock:
            return tuple(self._found)

    def replace(self, pods: Sequence[Object]) -> None:
        """See ``PodListener``."""
        for pod in pods:
            self._examine(pod)

    def on_event(self, change: str, pod: Object) -> None:
        """See ``PodListener``."""
        if change != "DELETED":
            self._examine(pod)

    def _examine(self, pod: Object) -> None:
        for failure in failures_of(pod):
            with self._lock:
                known = failure.container_id in self._known
                self._known[failure.container_id] = None
                if len(self._known) > MAX_KNOWN:
                    del self._known[next(iter(self._known))]
                marks = () if known else tuple(self._marks.values())
            self._conclude(failure, marks)

    def _conclude(self, failure: Failure, marks: Sequence[PressureSample]) -> None:
        diagnosis = diagnose(failure, marks)
        if diagnosis is None:
            return
        reason, mark = diagnosis
        words, quota = diagnosis_message(failure, reason, mark), mark.quota
        holders = [f"{each.who}: {each.mib} MiB" for each in mark.holders[:NAMED]]
        log.warning(
            "container failed while GPU memory was short", reason=str(reason), namespace=quota.namespace, pod=quota.pod,
            container=quota.container, gpu=quota.gpu, exit_code=failure.exit_code, holders=holders,
        )  # fmt: skip
        self._metrics.failed.labels(str(reason), quota.gpu).inc()
        self._events.record(words)
        with self._lock:
            self._found.append(_shown(failure, words, holders))


def _shown(failure: Failure, words: UserMessage, holders: Sequence[str]) -> dict[str, Any]:
    quota = words.quota
    return {
        "namespace": quota.namespace,
        "pod": quota.pod,
        "podUid": quota.pod_uid,
        "container": quota.container,
        "gpu": quota.gpu,
        "reason": str(words.reason),
        "sentence": words.note,
        "finished": failure.finished,
        "holders": list(holders),
    }
