"""``status.json`` on disk: written whole when something in it changed, and every few looks anyway.

A look that finds all as it was costs no write: the file tells by its time that somebody watches, and that time may be
a little old (``gpu-share top`` minds after ten seconds).
"""

import json
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.detection.types import DetectorState, Phase
from enforcer.runtime import files
from enforcer.status.node_status import NAME, Snapshot, status
from gpushare.reasons import Reason

log = structlog.get_logger()

LOOKS: Final = 4
SECONDS: Final = 2.0
"""What comes first has a file written again that would say the same."""


class StatusFile:
    """The file in the state directory.

    Args:
        folder: the state directory.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Final = folder / NAME
        self._content: dict[str, Any] = {}
        self._looks = 0
        self._written = 0.0
        self.problem: str | None = None
        """Why it could not be written; ``None`` while it can."""

    def wants(self, found: dict[str, Any], now: float) -> bool:
        """Take in one look, and say whether it is to be written.

        Args:
            found: of the shape of ``enforcer.status.node_status``.
            now: seconds that never go back.
        """
        self._looks += 1
        return self._looks >= LOOKS or now - self._written >= SECONDS or _content(found) != self._content

    def put(self, found: dict[str, Any], now: float) -> None:
        """Write it; arguments as for ``wants``."""
        try:
            files.replace(self._path, json.dumps(found).encode() + b"\n", report=True)
        except OSError as error:
            if self.problem is None:
                log.warning("status not written", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error))
            self.problem, self._content = f"{NAME} cannot be written: {error}", {}
        else:
            self.problem, self._content, self._looks, self._written = None, _content(found), 0, now


def _content(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "time"}


_TIMES: Final = frozenset({"time", "now", "edition"})
_CONTENT: Final = attrgetter(*(field.name for field in fields(Snapshot) if field.name not in _TIMES))


class StatusCache:
    """Numbers what looks led to: two with the same number say the same, but for their time."""

    def __init__(self) -> None:
        self._content: object = None
        self._number = 0
        self._found: dict[str, Any] = {}

    def render(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
        """Give a look its number, from 1, and say what it led to, of the shape of ``enforcer.status.node_status``."""
        content = _CONTENT(snapshot)
        if content != self._content or snapshot.sight or not no_timer_running(snapshot.state):
            self._number += 1
            self._content, self._found = content, status(snapshot)
        numbered = replace(snapshot, edition=self._number)
        return numbered, {**self._found, "time": snapshot.time}


def no_timer_running(state: DetectorState) -> bool:
    """Whether no violation, no budget and no kill has a time that still runs."""
    running = any(case.phase is not Phase.WITHIN or case.used for case in state.cases.values())
    return not (state.kills or state.accounts or running)
