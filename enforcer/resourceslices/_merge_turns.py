"""When the offer is made: every so often, and at once when others take memory that is on offer."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from enforcer.attribution.usage import Watch
from enforcer.quota.types import Quota
from enforcer.resourceslices.controller import Offering
from enforcer.runtime._merge_repeat import every
from gpushare.errors import NvmlError

log = structlog.get_logger()

EVERY: Final = 10.0
"""Seconds between looks at what is offered; slices are written only where that changed."""


class Preparer(Protocol):
    """Who prepares claims on what is offered."""

    @property
    def problem(self) -> str | None:
        """Why nobody does; ``None`` where it is well."""

    def leaving(self) -> frozenset[str]:
        """UIDs of the pods whose claims were undone while their processes live on."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What is offered, seen and promised. Without a preparer, claims are taken as they were allocated."""

    offering: Offering
    watch: Watch
    quotas: Callable[[], Sequence[Quota]]
    preparer: Preparer | None = None

    def offer(self) -> None:
        """Look, and make the offer fit."""
        if self.preparer is not None and self.preparer.problem is not None:
            return  # nobody would prepare what is offered
        try:
            views = self.watch.look()
        except NvmlError as error:
            # None was ever seen: what an agent before us offered cannot be had.
            log.warning("no GPU offered", reason=str(error.reason), error=error.message)
            views = ()
        self.offering.publish(views, self.quotas(), self._leaving())

    def due(self) -> bool:
        """Say, by what was seen last, whether the offer cannot wait."""
        return self.offering.outgrown(self.watch.latest, self.quotas(), self._leaving())

    def keep(self, poll: float, changed: threading.Event, stopped: threading.Event) -> None:
        """Begin to make the offer, in threads that end with the process.

        Args:
            poll: seconds between questions whether it is due.
            changed: set when it has to be made at once.
            stopped: set when there is to be no other turn.
        """
        every(EVERY, "offer", self.offer, stopped, changed)
        every(poll, "offer-due", lambda: changed.set() if self.due() else None, stopped)

    def _leaving(self) -> frozenset[str]:
        return frozenset() if self.preparer is None else self.preparer.leaving()
