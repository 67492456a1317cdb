"""Verify the node's own audit log, so that a broken one is noticed before somebody needs it.

That takes long for a long log. So it is done once a day, and when a file of the log is not as its writer left it.
"""

import math
import os
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final

import structlog

from enforcer.audit.log import AuditLog
from enforcer.audit.record import GENESIS, verify
from enforcer.audit.segments import extent, first_of, lines_of, segments
from enforcer.runtime.clock import CLOCK, Clock
from gpushare.reasons import Reason

log = structlog.get_logger()

EVERY: Final = 86400.0
"""Seconds between two verifications at most; the first one is at the start."""
LOOK: Final = 10.0
"""Seconds between two looks whether somebody changed a file."""
ATTEMPTS: Final = 3
"""A segment may be removed, as the settings say, while the log is read; then it is read again."""


Files = dict[str, object]


class LogVerifier:
    """Verifies the log up to the record that is its head at the beginning of a run.

    Args:
        folder: of the log.
        audit_log: knows the log's head as its writer does.
    """

    def __init__(self, folder: Path, audit_log: AuditLog, clock: Clock = CLOCK) -> None:
        self._folder, self._log, self._clock = folder, audit_log, clock
        self.finished: float | None = None
        """When the last verification ended; ``None`` before the first."""
        self.problem: str | None = None
        """Where the log is broken; ``None`` where it is intact."""
        self.unwritable: str | None = None
        """Which file or folder may not be written, so that nobody could be killed; ``None`` while all may be."""
        self._began, self._seen = -math.inf, Files()

    def run_once(self) -> None:
        """Verify the log, if that is due. A log that cannot be read is logged, and stays unverified."""
        self.unwritable = self._barred()
        now, seen = self._clock.monotonic(), self._files()
        if now - self._began >= EVERY or seen != self._seen:
            self._began, self._seen = now, seen
            self._verify_again()

    def _barred(self) -> str | None:
        """Look before a record has to be written: the folder is read-only, or it or a file of it immutable."""
        there = [each for each in (self._folder, self._folder / self._log.written[0]) if each.exists()]
        barred = next((each for each in there if not os.access(each, os.W_OK)), None)
        return f"the enforcer cannot write the audit log: {barred} is read-only or immutable" if barred else None

    def _files(self) -> Files:
        """Return each segment's extent; of the one that is written whether it is as its writer left it."""
        before = name, left = self._log.written
        found = Files()
        with suppress(OSError):  # verifying says so
            for file in segments(self._folder):
                there = extent(file.stat())
                writing = file.name == name and (left is None or self._log.written != before)
                found[file.name] = writing or there == left or there
        return found

    def _verify_again(self) -> None:
        for attempt in range(ATTEMPTS):
            try:
                self._verify()
            except FileNotFoundError as error:
                if attempt + 1 == ATTEMPTS:
                    self._unread(error)
            except OSError as error:
                self._unread(error)
                return
            else:
                return

    def _verify(self) -> None:
        head = self._log.head
        files = segments(self._folder)
        first = first_of(files[0].name) if files else None
        if head == GENESIS and files:
            return  # its writer could not read it yet
        count = head.seq - (first or 1) + 1  # a later record may be half written
        result = verify(islice(chain.from_iterable(map(lines_of, files)), max(0, count)), anchor=head)
        self.problem = (
            None
            if result.ok
            else f"the audit log is broken at line {result.line} (counted over all segments): {result.problem}"
        )
        self.finished = self._clock.wall()
        if self.problem is not None:
            log.error("audit log broken", reason=str(Reason.AUDIT_BROKEN), error=self.problem)

    def _unread(self, error: OSError) -> None:
        log.warning("audit log not verified", reason=str(Reason.AUDIT_BROKEN), error=str(error))
