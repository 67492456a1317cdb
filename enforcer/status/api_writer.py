"""Write to the API server from one thread, so that no other thread of the enforcer waits for it."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from enforcer.runtime.manager import Wake
from gpushare.errors import ClusterError
from gpushare.reasons import Reason

log = structlog.get_logger()

QUEUE: Final = 512
"""Writes of each kind that may wait: tenants can cause Events, which must not crowd out other writes."""
ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 1.0
"""After the first failed attempt; doubled after each."""


class ApiWriter:
    """Does writes one after the other. A write that fails in all attempts, or for good, is dropped and logged.

    Attributes:
        wake: set when there is a write.
    """

    def __init__(self) -> None:
        self.wake: Final = Wake()
        self._writes: deque[tuple[str, Callable[[], object]]] = deque()

    def put(self, failure: str, write: Callable[[], object]) -> None:
        """Take a write; never waits and never fails.

        Args:
            failure: what to log if the write fails, such as "event not delivered". It tells the kinds of writes apart.
            write: does it; may raise ``ClusterError``.
        """
        if [kind for kind, _ in tuple(self._writes)].count(failure) < QUEUE:
            self._writes.append((failure, write))
            self.wake.set()
        else:
            log.warning(
                failure,
                reason=str(Reason.TOO_LARGE),
                final=True,
                error=f"{QUEUE} writes to the API server already wait, so the enforcer dropped this one",
            )

    def run_once(self) -> None:
        """Do what waits. May be called by several threads."""
        with suppress(IndexError):
            while True:
                failure, write = self._writes.popleft()
                try:
                    _attempt(failure, write)
                except Exception:  # logged; a bug in one write must not end all later ones
                    log.exception(failure, reason=str(Reason.INTERNAL))


def _attempt(failure: str, write: Callable[[], object]) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            write()
        except ClusterError as error:
            final = attempt == ATTEMPTS or error.final
            log.warning(failure, reason=str(error.reason), final=final, error=error.message)
            if final:
                return
            time.sleep(RETRY_SECONDS * 2 ** (attempt - 1))
        else:
            return
