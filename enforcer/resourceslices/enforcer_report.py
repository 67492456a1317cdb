"""What a node's enforcer reports of itself, in an annotation of the node's own ResourceSlice (``contract.ENFORCER``).

``gpu-share check`` reads it, without a right to run commands in the enforcer's pod. Every write of a slice wakes every
scheduler, so the annotation is written where something changed. For new problems alone it is written once a minute at
most, so that problems that come and go cause two writes a minute. When none is left it is written at once.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from enforcer.resourceslices.publisher import slices_of
from enforcer.runtime.clock import CLOCK, Clock
from gpushare.contract import ENFORCER
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare.version import installed

log = structlog.get_logger()

EVERY: Final = 5.0
"""Seconds between looks."""
APART: Final = 60.0
"""Seconds between two writes of which the second says nothing but problems."""
STALE: Final = 120.0
"""Seconds without a report that was compared with the annotation: longer than an API server needs to be replaced."""
MAX_PROBLEMS: Final = 8
MAX_PROBLEM: Final = 500
"""Characters of a problem that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerState:
    """The state of an enforcer.

    ``breaker`` is since when the circuit breaker is open, empty where that is unknown, ``None`` while it is closed;
    ``breaker_reason`` is why, empty where that is unknown.
    ``audit_log`` names what is wrong with the audit log: it cannot be written, is broken, or lacks its anchor.
    """

    enforcing: bool
    breaker: str | None
    audit_log: tuple[str, ...]
    problems: tuple[str, ...]
    breaker_reason: str = ""

    def urgent(self) -> dict[str, Any]:
        """Return what is written at once when it changes."""
        return {
            "version": installed(),
            "enforcing": self.enforcing,
            "breaker": self.breaker,
            "breakerReason": self.breaker_reason,
            "auditLog": "; ".join(each[:MAX_PROBLEM] for each in self.audit_log),
        }

    def whole(self) -> dict[str, Any]:
        """Return all that is written."""
        return {**self.urgent(), "problems": [each[:MAX_PROBLEM] for each in self.problems[:MAX_PROBLEMS]]}


class ReportPublisher:
    """Keeps the annotation of a node's first slice at the state of its enforcer.

    Args:
        cluster: where the slices are.
        node: whose.
        state: returns the enforcer's state; raises ``OSError``.
    """

    def __init__(
        self,
        cluster: KubeClient,
        node: str,
        state: Callable[[], EnforcerState],
        clock: Clock = CLOCK,
    ) -> None:
        self._cluster, self._node, self._state, self._clock = cluster, node, state, clock
        self._written, self._current = float("-inf"), clock.monotonic()
        self._failure = ""

    def run_once(self) -> None:
        """Write the annotation where it is another. What fails is tried again next time."""
        try:
            self._write_if_changed(self._state())
            self._failure, self._current = "", self._clock.monotonic()
        except (ClusterError, OSError) as error:
            if not self._failure:
                log.warning("enforcer report not published", error=str(error))
            self._failure = str(error)

    def stale(self) -> str | None:
        """Return why the annotation may be out of date; ``None`` where it is not. The process is not ready then."""
        age = self._clock.monotonic() - self._current
        return (
            (
                f"the enforcer has not published its report (ResourceSlice annotation) for {age:.0f} s: "
                f"{self._failure or 'the thread that writes it is busy or hangs'}"
            )
            if age > STALE
            else None
        )

    def _write_if_changed(self, state: EnforcerState) -> None:
        slices = slices_of(self._cluster, self._node)
        if not slices:
            return
        first = min(slices)
        before = _read((slices[first]["metadata"].get("annotations") or {}).get(ENFORCER))
        after = state.whole()
        if before == after:
            return
        pressing = not state.problems or {key: before.get(key) for key in state.urgent()} != state.urgent()
        if not pressing and self._clock.monotonic() - self._written < APART:
            return
        change = {"metadata": {"annotations": {ENFORCER: json.dumps(after)}}}
        self._cluster.patch(path(RESOURCE_V1, "resourceslices", first), change)
        self._written = self._clock.monotonic()


def _read(text: object) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
