"""The audit log's one writer: a thread that waits for the disk, so that nobody else has to.

A disk may take seconds, or never answer. Who asks for a record waits so long and no longer. What is not durable in time
is not acted upon: should that INTENT become durable after all, it is answered by ABORTED. An answer is not given up
while we live, and the INTENTs that an enforcer before us died over are answered as soon as anything can be written.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from enforcer.audit import kill_records
from enforcer.audit.log import AuditLog
from enforcer.audit.record import ChainHead, Kind
from enforcer.runtime.lock import StateLock
from gpushare.errors import RecordError
from gpushare.reasons import Reason

log = structlog.get_logger()

WAIT_SECONDS: Final = 10.0
"""For one record. A disk that takes five is slow; after longer, the detector has to decide again."""
MAX_WAITING: Final = 256
"""Records that may wait for the disk; beyond that, what nobody waits for is let go of."""

Fields = Mapping[str, Any]
Task = tuple[Future[ChainHead], Callable[[], ChainHead]]


class AuditWriter:
    """Writes to an audit log, one record after the other. Safe to use from several threads.

    Args:
        audit_log: nobody else writes to it.
        node: whose log it is.
        wait: seconds that who asks for a record waits for it.
        lock: of the state directory; while it is lost nothing is written. ``None``: the log is ours alone.
    """

    def __init__(
        self, audit_log: AuditLog, node: str, *, wait: float = WAIT_SECONDS, lock: StateLock | None = None
    ) -> None:
        self._log, self._node, self._wait, self._lock_of_state = audit_log, node, wait, lock
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._busy = False
        self._begun: float | None = None
        self._taken_up = False
        self._owed: deque[tuple[Kind, Fields]] = deque()

    @property
    def head(self) -> ChainHead:
        """The last record's number and hash: the anchor to keep elsewhere."""
        return self._log.head

    @property
    def problem(self) -> str | None:
        """Why nobody is ended now; ``None`` while records can be written."""
        begun = self._begun
        if begun is not None and time.monotonic() - begun > self._wait:
            return (
                f"the audit log's disk has not answered for {self._wait:g} s; the enforcer kills no container "
                "until the disk answers"
            )
        return self._lost() or self._log.problem

    def open(self) -> None:
        """Find the log's end, and answer the INTENTs that an enforcer died over.

        Raises:
            RecordError: that is not possible yet; ``retry_pending`` does it, or the first record that can be written.
        """
        self._in_time(self._do(self._settle))

    def write_intent(self, fields: Fields) -> ChainHead:
        """Write an INTENT. Returns the chain's head once it is durable.

        Raises:
            RecordError: it is not, or was not in time: it must not be acted upon.
        """
        return self._in_time(self._do(partial(self._append, Kind.INTENT, fields)), partial(self._cancel, fields))

    def complete(self, kind: Kind, fields: Fields) -> ChainHead:
        """Write what became of an INTENT. Returns the chain's head once it is durable.

        Raises:
            RecordError: it is not yet. It is not to be asked for again: ``retry_pending`` does.
        """
        return self._in_time(self._answer(kind, fields))

    def complete_later(self, kind: Kind, fields: Fields) -> None:
        """Have written what became of an INTENT, now or as soon as it can be. Does not wait."""
        self._answer(kind, fields)

    def append_async(self, kind: Kind, fields: Fields, failed: Callable[[RecordError], object]) -> None:
        """Write a record that nobody waits for; ``failed`` is called, from any thread, where it cannot be written."""
        if len(self._tasks) >= MAX_WAITING:
            failed(
                RecordError(
                    f"{MAX_WAITING} records already wait for the audit log's disk, so the enforcer dropped this record"
                )
            )
            return
        done = self._do(partial(self._append, kind, fields))
        done.add_done_callback(lambda _: failed(error) if isinstance(error := done.exception(), RecordError) else None)

    def retry_pending(self) -> None:
        """Have written what could not be in its time: answers, and what ``open`` was to find. Does not wait."""
        if (self._owed or not self._taken_up) and not self._busy:
            self._do(self._settle)

    def close(self) -> None:
        """Let go of the files once all is written; not of those that a disk does not give back."""
        try:
            self._in_time(self._do(self._closed))
        except RecordError as error:
            log.critical("audit log not closed", reason=str(Reason.AUDIT_UNWRITABLE), error=error.message)

    def _answer(self, kind: Kind, fields: Fields) -> Future[ChainHead]:
        done = self._do(partial(self._append, kind, fields))
        done.add_done_callback(lambda _: None if done.exception() is None else self._owed.append((kind, fields)))
        return done

    def _in_time(self, done: Future[ChainHead], late: Callable[[Future[ChainHead]], object] = id) -> ChainHead:
        try:
            return done.result(self._wait)
        except TimeoutError as error:
            late(done)
            raise RecordError(f"the audit log's disk has not answered for {self._wait:g} s") from error

    def _cancel(self, fields: Fields, done: Future[ChainHead]) -> None:
        """Take an INTENT back that nobody waits for any longer: unasked, or answered once it is durable."""
        if not done.cancel():
            done.add_done_callback(partial(self._cancelled, fields))

    def _cancelled(self, fields: Fields, done: Future[ChainHead]) -> None:
        if done.exception() is None:
            self._answer(Kind.ABORTED, kill_records.cancelled_record(self._node, {**fields, "seq": done.result().seq}))

    def _do(self, task: Callable[[], ChainHead]) -> Future[ChainHead]:
        """Queue something for the writer. Where no thread can be started, it waits for the next who asks."""
        done = Future[ChainHead]()
        with self._lock:
            self._tasks.append((done, task))
            if not self._busy:
                try:
                    threading.Thread(target=self._work, name="audit-writer", daemon=True).start()
                    self._busy = True
                except RuntimeError as error:
                    log.critical(
                        "cannot start audit writer thread", reason=str(Reason.AUDIT_UNWRITABLE), error=str(error)
                    )
        return done

    def _work(self) -> None:
        """Do what is queued, and end: a thread that waits for nothing is one that nobody has to end."""
        while (found := self._next()) is not None:
            done, task = found
            if done.set_running_or_notify_cancel():
                self._begun = time.monotonic()
                try:
                    done.set_result(task())
                except BaseException as error:  # noqa: BLE001 - it is raised where the record was asked for
                    done.set_exception(error)
                self._begun = None

    def _next(self) -> Task | None:
        with self._lock:
            self._busy = bool(self._tasks)
            return self._tasks.popleft() if self._busy else None

    def _append(self, kind: Kind, fields: Fields) -> ChainHead:
        self._take_up()
        return self._log.append(kind, fields)

    def _settle(self) -> ChainHead:
        self._take_up()
        while self._owed:
            self._log.append(*self._owed[0])
            self._owed.popleft()
        return self._log.head

    def _lost(self) -> str | None:
        return None if self._lock_of_state is None else self._lock_of_state.lost()

    def _take_up(self) -> None:
        """Check that the log is ours, and find once what an enforcer before us left unanswered."""
        if (why := self._lost()) is not None:
            raise RecordError(why)
        if not self._taken_up:
            left = self._log.open()
            self._owed.extend((Kind.OUTCOME, kill_records.interrupted_record(self._node, record)) for record in left)
            self._taken_up = True

    def _closed(self) -> ChainHead:
        with suppress(RecordError):  # what cannot be written now the next start answers
            self._settle()
        self._log.close()
        return self._log.head


def open_or_warn(audit_log: AuditWriter) -> None:
    """Open the audit log. While it cannot be written no process is killed, but all GPUs are sampled."""
    try:
        audit_log.open()
    except RecordError as error:
        log.critical(
            "the audit log cannot be opened; the enforcer kills no process until it can write the log",
            reason=str(error.reason),
            error=error.message,
        )
