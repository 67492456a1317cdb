"""Waiting for what a share needs before its pod may start: the MPS daemon of its GPU."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from gpushare.errors import PrepareError
from gpushare.reasons import Reason

log = structlog.get_logger()

PATIENCE: Final = 10.0
PAUSE: Final = 0.25


class MpsReady:
    """Asks the daemons' keeper, again and again, for a few seconds.

    Args:
        hindrance: says what keeps a GPU's daemon from serving, ``None`` where it serves.
        patience: seconds.
    """

    def __init__(self, hindrance: Callable[[str], str | None], patience: float = PATIENCE) -> None:
        self._hindrance, self._patience = hindrance, patience

    def wait(self, gpus: Sequence[str]) -> None:
        """Wait until these GPUs' daemons serve.

        Raises:
            PrepareError: one does not within the time.
        """
        deadline = time.monotonic() + self._patience
        for gpu in gpus:
            while (said := self._hindrance(gpu)) is not None:
                if time.monotonic() >= deadline:
                    # What the daemon said may name other tenants' processes: that is for the agent's log.
                    log.warning("MPS daemon does not serve", reason=str(Reason.MPS_UNREACHABLE), gpu=gpu, said=said)
                    message = f"the MPS daemon of {gpu} does not serve; it is tried again"
                    raise PrepareError(message, Reason.MPS_UNREACHABLE)
                time.sleep(PAUSE)


class AlwaysReady:
    """Where GPUs are only watched there is nothing to wait for."""

    def wait(self, gpus: Sequence[str]) -> None:
        """Return at once."""
