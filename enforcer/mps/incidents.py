"""What happened to MPS daemons that operators should know of: logged at once, counted, kept for Events."""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gpushare.reasons import Reason

KEPT: Final = 64
"""Incidents that wait for their Event; tenants can cause any number."""
SAME: Final = 60.0
"""Seconds in which the same kind of thing on the same GPU is logged and reported once."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Incident:
    """One of them; ``note`` is a sentence for operators."""

    gpu: str
    reason: Reason
    note: str


class IncidentLog:
    """Collects them from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Reason]] = Counter()
        self._last: dict[tuple[str, Reason, object], float] = {}
        self._unsaid: deque[Incident] = deque(maxlen=KEPT)

    def record(self, incident: Incident, **more: object) -> None:
        """Take one in; ``more`` goes to the log alone. ``pod_uid`` in it: what another pod does is another thing."""
        key, now = (incident.gpu, incident.reason, more.get("pod_uid")), time.monotonic()
        with self._lock:
            self._counts[incident.gpu, incident.reason] += 1
            if now - self._last.get(key, -SAME) < SAME:
                return
            self._last = {each: when for each, when in self._last.items() if now - when < SAME} | {key: now}
            self._unsaid.append(incident)
        log.warning(incident.note, reason=str(incident.reason), gpu=incident.gpu, **more)

    @property
    def counts(self) -> Mapping[tuple[str, Reason], int]:
        """How many there were, by GPU and reason."""
        with self._lock:
            return dict(self._counts)

    def pending(self) -> Iterator[Incident]:
        """Those without an Event so far, each once."""
        while self._unsaid:
            yield self._unsaid.popleft()
