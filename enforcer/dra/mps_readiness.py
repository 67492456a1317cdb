"""Waiting for what a share needs before its pod may start: the MPS daemon of its GPU."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from enforcer.mps.supervisor import MpsSupervisor
from gpushare.errors import PrepareError
from gpushare.reasons import Reason

log = structlog.get_logger()

PAUSE: Final = 0.25
NO_ANSWER: Final = "the health check of the MPS daemon has not returned"


def wait_until_ready(keeper: MpsSupervisor, gpus: Sequence[str], wanted: Callable[[], bool]) -> None:
    """Ask again and again, as long as that is wanted, until these GPUs' daemons serve.

    Raises:
        PrepareError: one does not within the time.
    """
    for gpu in gpus:
        while (problem := _asked(keeper, gpu, wanted)) is not None:
            if not wanted():
                # The daemon's answer may name other tenants' processes: it belongs in the enforcer's log.
                log.warning("MPS daemon not ready", reason=str(Reason.MPS_UNREACHABLE), gpu=gpu, problem=problem)
                message = f"the MPS daemon of {gpu} is not ready, or has not stopped yet; the kubelet retries"
                raise PrepareError(message, Reason.MPS_UNREACHABLE)
            time.sleep(PAUSE)


def _asked(keeper: MpsSupervisor, gpu: str, wanted: Callable[[], bool]) -> str | None:
    """Ask from a thread that may be left behind: a call of the kubelet's has its own end."""
    answers: SimpleQueue[str | Exception | None] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(keeper.not_ready_reason(gpu))
        except Exception as bug:  # noqa: BLE001 - raised again by who asked
            answers.put(bug)

    threading.Thread(target=ask, name="mps-readiness", daemon=True).start()
    while True:
        try:
            answer = answers.get(timeout=PAUSE)
        except Empty:
            if wanted():
                continue
            return NO_ANSWER
        if isinstance(answer, Exception):
            raise answer
        return answer
