"""Waiting for what a share needs before its pod may start: the MPS daemon of its GPU."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from gpushare.errors import PrepareError
from gpushare.reasons import Reason

log = structlog.get_logger()

PATIENCE: Final = 10.0
PAUSE: Final = 0.25
NO_ANSWER: Final = "nobody knows: what asks it is held up"


class MpsReady:
    """Asks the daemons' keeper, again and again, for a few seconds. The keeper may take longer than that to answer.

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
            while (said := self._asked(gpu, deadline)) is not None:
                if time.monotonic() >= deadline:
                    # What the daemon said may name other tenants' processes: that is for the agent's log.
                    log.warning("MPS daemon does not serve", reason=str(Reason.MPS_UNREACHABLE), gpu=gpu, said=said)
                    message = f"the MPS daemon of {gpu} does not serve; it is tried again"
                    raise PrepareError(message, Reason.MPS_UNREACHABLE)
                time.sleep(PAUSE)

    def _asked(self, gpu: str, deadline: float) -> str | None:
        """Ask from a thread that may be left behind: a call of the kubelet's has its own end."""
        answers: SimpleQueue[str | Exception | None] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._hindrance(gpu))
            except Exception as bug:  # noqa: BLE001 - raised again by who asked
                answers.put(bug)

        threading.Thread(target=ask, name="hindrance", daemon=True).start()
        try:
            answer = answers.get(timeout=max(PAUSE, deadline - time.monotonic()))
        except Empty:
            return NO_ANSWER
        if isinstance(answer, Exception):
            raise answer
        return answer


class AlwaysReady:
    """Where GPUs are only watched there is nothing to wait for."""

    def wait(self, gpus: Sequence[str]) -> None:
        """Return at once."""
