"""Verify the node's own audit log, so that a broken one is noticed before somebody needs it.

That takes long for a long log. So it is done once a day, and when a file of the log is not as its writer left it.
"""

import math
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Final

import structlog

from enforcer.audit.log import AuditLog
from enforcer.audit.record import GENESIS, verify
from enforcer.audit.segments import Extent, first_of, lines_of, segments
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.runtime.files import unwritable
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
        """What of the log may not be written; ``None`` where all may be."""
        self._began, self._seen = -math.inf, Files()
        self._more = False
        """Whether there are bytes after the last record that its writer left."""

    def run_once(self) -> None:
        """Verify the log, if that is due. A log that cannot be read is logged, and stays unverified."""
        self._log.reserve()
        self.unwritable = self._barred()
        now, seen = self._clock.monotonic(), self._files()
        if now - self._began >= EVERY or seen != self._seen:
            self._began, self._seen = now, seen
            self._verify_again()

    def _barred(self) -> str | None:
        """Look before a record has to be written; one that somebody waits for would come too late."""
        barred = unwritable((self._folder, self._folder / self._log.written[0]))
        return f"{barred} is read-only or immutable, so the audit log cannot go on" if barred else None

    def _files(self) -> Files:
        """Return by segment what nobody but its writer changes; nothing of the last one while it is as that left it."""
        before = name, left, changes = self._log.written
        found, self._more = Files({"": changes}), False
        with suppress(OSError):  # verifying says so
            for file in segments(self._folder):
                there, last = Extent.of(file.lstat()), file.name == name
                ours = last and (left is None or there == left or self._log.written != before)
                found[file.name] = None if ours else there
                self._more |= last and not ours and left is not None and there.size > left.size
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
        self.problem = "the audit log has bytes after its last record" if self._more else None
        if not result.ok:
            where = f"line {result.line} (counted over all segments)"
            self.problem = f"the audit log is broken at {where}: {result.problem}"
        self.finished = self._clock.wall()
        if self.problem is not None:
            log.error("audit log broken", reason=str(Reason.AUDIT_BROKEN), error=self.problem)

    def _unread(self, error: OSError) -> None:
        if self._log.head != GENESIS:  # else its writer could not read it yet
            self.problem = f"the audit log cannot be read: {error}"
        log.warning("audit log not verified", reason=str(Reason.AUDIT_BROKEN), error=str(error))
