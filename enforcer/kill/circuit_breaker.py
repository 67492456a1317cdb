"""The breaker's mark on disk: while ``breaker-open.json`` stands in the state directory nobody is killed.

The detector opens the breaker, and closes it once what opened it is over (``enforcer.detection.storm``). An operator
closes it by removing the file (``gpu-share breaker --reset``). An operator may also put the file there to have nobody
killed for a while; then only an operator closes it, and so it is after a boot.
"""

import json
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.audit.log import utc_now
from enforcer.detection.detector import close_breaker
from enforcer.detection.forecast import RESET
from enforcer.detection.types import DetectorState
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Quota
from enforcer.runtime import files
from enforcer.runtime.background import BackgroundExecutor
from gpushare.reasons import Reason

log = structlog.get_logger()

NAME: Final = "breaker-open.json"
NAMED: Final = 3
"""At most so many namespaces are named in the reason of an open breaker."""
MAX_REASON: Final = 300
"""Characters of a reason that are kept."""
OPEN: Final = (
    "the circuit breaker is open, so the enforcer kills nothing; find the containers over quota, then run "
    f"`{RESET}` on this node"
)


class CircuitBreaker:
    """Keeps state and file at one: what opens stays open until the file is gone.

    Args:
        folder: the state directory.
        disk: reads and writes the file in its own time.
    """

    def __init__(self, folder: Path, disk: BackgroundExecutor) -> None:
        self._path: Final = folder / NAME
        self._disk = disk
        self._written = False
        self._closing = False
        """Whether the detector has closed it, and the file is still to be removed."""
        self.is_open = False
        """Whether the file was there when the disk answered last."""
        self.problem: str | None = None
        """What operators have to know; ``None`` while it is closed."""

    def sync_from_disk(self, state: DetectorState) -> DetectorState:
        """Return the state as the file has it: open where there is one, closed where it was removed.

        Unchanged while the disk does not answer.
        """
        if self._closing:
            return state
        written = self._written  # before the disk is asked: what is written meanwhile is not missing
        stands = self._disk.run_within("breaker?", self._looked, None)
        if (stands or (stands is None and written)) and not state.open:
            return _opened(state)
        if state.open and written and stands is False:
            log.warning("circuit breaker closed: an operator removed its file", reason=str(Reason.RECOVERED), file=NAME)
            self._written = False
            return close_breaker(state)
        return state

    def persist(self, state: DetectorState) -> None:
        """Write the file where the detector has opened the breaker; tried again until it is written."""
        self.problem = OPEN if state.open else None
        self._closing = self._written and not state.open
        if self._closing:
            self._disk.run_within("breaker", self._remove, None)
        elif state.open and not self._written:
            self._disk.run_within("breaker", partial(self._write, state), None)

    def _remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:  # while it stands nobody is killed; the next iteration tries again
            log.critical(
                "the enforcer cannot remove the file of the circuit breaker, so it kills nothing; it retries",
                reason=str(Reason.AUDIT_UNWRITABLE),
                error=str(error),
            )
            return
        self._written = self._closing = self.is_open = False
        log.warning("circuit breaker closed: its cause has ended", reason=str(Reason.RECOVERED), file=NAME)

    def _write(self, state: DetectorState) -> None:
        if self._looked():
            self._written = True
            return
        log.critical(OPEN, reason=str(Reason.BREAKER_OPEN), kills=[kill.place for kill in state.kills])
        killed = [
            {"namespace": kill.namespace, "podUid": kill.place[0], "container": kill.place[1]} for kill in state.kills
        ]
        content = {"time": utc_now(), "reason": _reason(state), "killed": killed}
        try:
            files.replace(self._path, json.dumps(content).encode() + b"\n", durable=True)
            self._written = True
        except OSError as error:
            log.critical(
                "file of the circuit breaker not written", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error)
            )

    def _looked(self) -> bool | None:
        """Whether the file is there; ``None`` where the disk cannot tell."""
        try:
            self._path.lstat()
        except FileNotFoundError:
            self.is_open = False
        except OSError:
            return None
        else:
            self.is_open = True
        return self.is_open


def _reason(state: DetectorState) -> str:
    """Say which containers opened the breaker; empty where the detector did not open it."""
    if state.opening is None:
        return ""
    namespaces = sorted({namespace for namespace, _ in state.opening.by})
    named = ", ".join(namespaces[:NAMED]) + (", ..." if len(namespaces) > NAMED else "")
    return f"containers killed or due to be killed: {len(state.opening.by)}, of namespaces {named}"


def _opened(state: DetectorState) -> DetectorState:
    log.critical(OPEN, reason=str(Reason.BREAKER_OPEN), file=NAME)
    return replace(state, open=True)


@dataclass(frozen=True, slots=True)
class GuardedQuotas:
    """The quotas in force while the circuit breaker's file is absent; while it is there no container may be killed.

    Args:
        folder: the state directory.
        checkpoint: the quotas of this node.
    """

    folder: Path
    checkpoint: Checkpoint

    def in_force(self, quota: Quota) -> Quota | None:
        """Return the container's quota now, no less than that of the kill decision; ``None``: it must not be killed."""
        return None if os.path.lexists(self.folder / NAME) else self.checkpoint.in_force(quota)


def opened_at(folder: Path) -> str | None:
    """Say since when the breaker is open; empty where the file does not say, ``None`` where it is closed.

    Raises:
        OSError: the folder cannot be read.
    """
    found = _content(folder)
    return None if found is None else str(found.get("time", ""))


def opened_for(folder: Path) -> str:
    """Say why the enforcer opened the breaker; empty where the file does not say, or is not there.

    Raises:
        OSError: the folder cannot be read.
    """
    return str((_content(folder) or {}).get("reason", ""))[:MAX_REASON]


def _content(folder: Path) -> dict[str, Any] | None:
    """Read the file; ``None`` where there is none, empty where it cannot be read."""
    try:
        with open(folder / NAME, "rb", opener=_at_once) as file:
            found = json.loads(file.read(64 * 1024))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _at_once(path: str, flags: int) -> int:
    """Open what may be no plain file, without waiting for anybody at its other end."""
    return os.open(path, flags | os.O_NONBLOCK)


def reset(folder: Path) -> bool:
    """Take the file away; false where there was none.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        (folder / NAME).unlink()
    except FileNotFoundError:
        return False
    return True
