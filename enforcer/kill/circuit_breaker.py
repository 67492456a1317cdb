"""The breaker's mark on disk: while ``breaker-open.json`` stands in the state directory nobody is killed.

An operator puts it there, to have nobody killed for a while, and removes it (``gpu-share breaker --reset``). Nothing
else opens it: what a container does has no influence on the kills of others.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.detection.detector import close_breaker
from enforcer.detection.forecast import RESET
from enforcer.detection.types import DetectorState
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Quota
from enforcer.runtime.background import BackgroundExecutor
from gpushare.reasons import Reason

log = structlog.get_logger()

NAME: Final = "breaker-open.json"
MAX_REASON: Final = 300
"""Characters of a reason that are kept."""
OPEN: Final = (
    f"an operator stopped all kills of this node with the file {NAME}, so the enforcer kills nothing; to resume, run "
    f"`{RESET}` on this node"
)


class CircuitBreaker:
    """Keeps the detector's state as the file has it.

    Args:
        folder: the state directory.
        disk: looks at the file in its own time.
    """

    def __init__(self, folder: Path, disk: BackgroundExecutor) -> None:
        self._path: Final = folder / NAME
        self._disk = disk
        self.is_open = False
        """Whether the file was there when the disk answered last."""
        self.problem: str | None = None
        """What operators have to know; ``None`` while it is closed."""

    def sync_from_disk(self, state: DetectorState) -> DetectorState:
        """Return the state as the file has it: open where there is one, closed where it was removed.

        Unchanged while the disk does not answer.
        """
        stands = self._disk.run_within("breaker?", self._looked, None)
        if stands and not state.open:
            log.critical(OPEN, reason=str(Reason.BREAKER_OPEN), file=NAME)
            state = replace(state, open=True)
        elif stands is False and state.open:
            log.warning("circuit breaker closed: its file was removed", reason=str(Reason.RECOVERED), file=NAME)
            state = close_breaker(state)
        self.problem = OPEN if state.open else None
        return state

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
