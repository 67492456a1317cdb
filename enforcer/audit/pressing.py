"""The records of the audit log that are anchored at once (``enforcer.resourceslices.audit_head_publisher``)."""

import threading
from typing import Final

from enforcer.audit.record import Kind
from enforcer.runtime.manager import Wake

PRESSING: Final = frozenset({Kind.OUTCOME, Kind.RECOVERED})


class PressingRecords:
    """Notes that there are such records.

    Attributes:
        wake: set at each, for the thread of the publisher.
        noted: set at each; cleared by the publisher.
    """

    def __init__(self) -> None:
        self.wake: Final = Wake()
        self.noted: Final = threading.Event()

    def note(self, kind: Kind) -> None:
        """Take note of a record; never waits and never fails."""
        if kind in PRESSING:
            self.noted.set()
            self.wake.set()
