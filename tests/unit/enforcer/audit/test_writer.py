"""Records and a disk that is slow, fails, or never answers."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind, read, verify
from enforcer.audit.writer import MAX_WAITING, AuditWriter
from enforcer.runtime.lock import acquire_lock
from gpushare.errors import RecordError
from tests.support.patience import holds_within, patient

SHORT = 0.05


class Disk:
    """Stands in for ``fdatasync``: holds every sync up while it hangs, and fails those it is reported to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.fails = False

    def sync(self, _: int) -> None:
        self.asked.set()
        assert self.answers.wait(60)
        if self.fails:
            raise OSError(5, "Input/output error")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(os, "fdatasync", made.sync)
    yield made
    made.answers.set()


def ignored(_: RecordError) -> None:
    """Take a failure that says nothing here."""


def finish(log: AuditWriter) -> None:
    """Have all written, in what time that takes here."""
    log._wait = patient(30)
    log.close()


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in segments(folder) for line in file.read_bytes().splitlines(keepends=True)]
    assert verify(lines).ok
    return [read(line) for line in lines]


def kinds(folder: Path) -> list[str]:
    return [record["kind"] for record in records(folder)]


def test_an_intent_that_is_not_durable_in_time_is_refused_and_answered_once_it_is(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", wait=patient(1))
    disk.answers.clear()
    with pytest.raises(RecordError, match=r"not answered for \d+ s"):
        log.write_intent({"pid": 7, "container": "model"})
    assert disk.asked.is_set()
    assert holds_within(lambda: "kills no container until the disk answers" in (log.problem or ""), 10, SHORT)
    disk.answers.set()
    assert holds_within(lambda: log.head.seq == 2, 10, SHORT)
    finish(log)
    intent, answer = records(tmp_path / "audit")
    assert (intent["kind"], answer["kind"], answer["intent"]) == ("INTENT", "ABORTED", 1)
    assert (answer["result"], answer["container"], answer["node"]) == ("AuditUnwritable", "model", "gpu-7")
    assert log.problem is None


def test_an_intent_that_waited_behind_another_is_never_written(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", wait=SHORT)
    disk.answers.clear()
    log.append_async(Kind.WARNED, {}, ignored)
    with pytest.raises(RecordError):
        log.write_intent({"pid": 7})
    disk.answers.set()
    finish(log)
    assert kinds(tmp_path / "audit") == ["WARNED"]


def test_an_intent_whose_sync_fails_too_late_leaves_nothing_to_answer(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", wait=patient(1))
    disk.answers.clear()
    disk.fails = True
    with pytest.raises(RecordError):
        log.write_intent({"pid": 7})
    disk.answers.set()
    finish(log)
    disk.fails = False
    log.write_intent({"pid": 8})
    assert [(record["kind"], record["pid"]) for record in records(tmp_path / "audit")] == [("INTENT", 8)]


def test_an_answer_that_comes_late_is_written_once(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7")
    intent = log.write_intent({"pid": 7})
    log._wait = SHORT
    disk.answers.clear()
    with pytest.raises(RecordError):
        log.complete(Kind.OUTCOME, {"intent": intent.seq})
    for _ in range(3):
        log.retry_pending()
    disk.answers.set()
    log.retry_pending()
    finish(log)
    assert kinds(tmp_path / "audit") == ["INTENT", "OUTCOME"]


def test_an_answer_that_failed_is_written_when_it_can_be(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7")
    intent = log.write_intent({"pid": 7})
    disk.fails = True
    with pytest.raises(RecordError, match="Input/output error"):
        log.complete(Kind.OUTCOME, {"intent": intent.seq})
    for _ in range(3):
        log.retry_pending()
        log.close()
    disk.fails = False
    log.retry_pending()
    log.close()
    assert kinds(tmp_path / "audit") == ["INTENT", "OUTCOME"]


def test_who_stops_writes_first_what_failed_before(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7")
    intent = log.write_intent({"pid": 7})
    disk.fails = True
    with pytest.raises(RecordError):
        log.complete(Kind.OUTCOME, {"intent": intent.seq})
    disk.fails = False
    log.close()
    assert kinds(tmp_path / "audit") == ["INTENT", "OUTCOME"]


def test_what_an_enforcer_died_over_is_answered_when_the_log_can_be_written(disk: Disk, tmp_path: Path) -> None:
    AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7").write_intent({"pid": 7})
    disk.fails = True
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7")
    with pytest.raises(RecordError):
        log.open()
    disk.fails = False
    log.retry_pending()
    log.close()
    assert [(each["kind"], each.get("result"), each.get("node")) for each in records(tmp_path / "audit")] == [
        ("INTENT", None, None), ("OUTCOME", "Interrupted", "gpu-7"),
    ]  # fmt: skip


def test_a_log_that_could_not_be_opened_is_taken_up_without_waiting_for_a_record(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    AuditWriter(AuditLog(folder), "gpu-7").write_intent({"pid": 7})
    folder.chmod(0o755)
    log = AuditWriter(AuditLog(folder), "gpu-7")
    with pytest.raises(RecordError, match="another user could change"):
        log.open()
    assert "another user could change" in (log.problem or "")
    folder.chmod(0o700)
    log.retry_pending()
    log.close()
    assert (log.problem, kinds(folder)) == (None, ["INTENT", "OUTCOME"])


def test_a_log_that_may_be_somebody_elses_is_not_written(tmp_path: Path) -> None:
    with acquire_lock(tmp_path / "state") as lock:
        log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", lock=lock)
        log.write_intent({"pid": 7})
        (tmp_path / "state" / "lock").unlink()
        with pytest.raises(RecordError, match="removed or replaced"):
            log.write_intent({"pid": 8})
        assert log.problem == lock.lost()
    assert len(records(tmp_path / "audit")) == 1


def test_what_nobody_waits_for_does_not_pile_up(disk: Disk, tmp_path: Path) -> None:
    failed: list[str] = []
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", wait=SHORT)
    disk.answers.clear()
    disk.asked.clear()
    log.append_async(Kind.WARNED, {}, lambda error: failed.append(error.message))
    assert disk.asked.wait(60), "the first is in hand, and waits no more"
    for _ in range(MAX_WAITING + 10):
        log.append_async(Kind.WARNED, {}, lambda error: failed.append(error.message))
    assert len(failed) == 10
    assert "records already wait" in failed[0]
    disk.answers.set()
    finish(log)  # else its thread would sync to the real disk during the tests that follow


def test_closing_does_not_wait_for_a_disk_that_is_gone(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", wait=SHORT)
    disk.answers.clear()
    log.append_async(Kind.WARNED, {}, ignored)
    log.close()
    assert not disk.answers.is_set()


def test_without_a_thread_to_write_nobody_is_ended_and_later_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7", wait=SHORT)

    def none(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none)
        with pytest.raises(RecordError):
            log.write_intent({"pid": 7})
    finish(log)
    log.write_intent({"pid": 8})
    assert [record["pid"] for record in records(tmp_path / "audit")] == [8]


def writers() -> list[bool]:
    """Whether each thread that writes lets the program end."""
    return [each.daemon for each in threading.enumerate() if each.name == "audit-writer"]


def test_its_thread_keeps_no_program_from_ending_and_ends_when_all_is_written(disk: Disk, tmp_path: Path) -> None:
    assert holds_within(lambda: not writers(), 10, SHORT), "those of other tests"
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7")
    assert log.problem is None
    disk.answers.clear()
    log.append_async(Kind.WARNED, {}, ignored)
    assert writers() == [True]
    disk.answers.set()
    for pid in range(20):
        log.write_intent({"pid": pid})
    assert holds_within(lambda: not writers(), 10, SHORT)


def test_a_writer_that_has_not_begun_yet_is_the_only_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log, begun = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7"), list[threading.Thread]()

    def late(writer: threading.Thread) -> None:
        begun.append(writer)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", late)
        log.complete_later(Kind.OUTCOME, {"n": 1})
        log.complete_later(Kind.OUTCOME, {"n": 2})
    (writer,) = begun
    writer.run()
    assert [record["n"] for record in records(tmp_path / "audit")] == [1, 2]


def test_who_posts_a_record_that_cannot_be_written_is_reported_why(disk: Disk, tmp_path: Path) -> None:
    log, failed = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7"), list[str]()
    log.append_async(Kind.WARNED, {"n": 1}, lambda error: failed.append(str(error)))
    finish(log)
    assert failed == []
    disk.fails = True
    log.append_async(Kind.WARNED, {"n": 2}, lambda error: failed.append(error.message))
    assert holds_within(lambda: len(failed) == 1, 10, SHORT)
    assert "Input/output error" in failed[0]
    disk.fails = False
    finish(log)
    assert [record["n"] for record in records(tmp_path / "audit")] == [1]


def test_what_could_not_be_written_in_its_time_is_without_being_asked_for(disk: Disk, tmp_path: Path) -> None:
    log = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7")
    intent = log.write_intent({"pid": 7})
    disk.fails = True
    with pytest.raises(RecordError):
        log.complete(Kind.OUTCOME, {"intent": intent.seq})
    disk.fails = False
    assert holds_within(lambda: not log._busy, 10, SHORT)
    log.retry_pending()
    assert holds_within(lambda: log.head.seq == 2, 10, SHORT)
    finish(log)


@pytest.mark.parametrize(
    ("owed", "taken_up", "busy", "asked"),
    [
        (True, True, False, 1), (False, False, False, 1), (True, False, False, 1), (False, True, False, 0),
        (True, True, True, 0), (False, False, True, 0), (False, True, True, 0),
    ],
)  # fmt: skip
def test_the_writer_is_asked_to_catch_up_where_there_is_something_and_it_is_not_at_it(
    tmp_path: Path, *, owed: bool, taken_up: bool, busy: bool, asked: int
) -> None:
    log, tasks = AuditWriter(AuditLog(tmp_path / "audit"), "gpu-7"), list[object]()
    log._do = tasks.append  # type: ignore[method-assign, assignment]
    log._taken_up, log._busy = taken_up, busy
    log._owed.extend([(Kind.OUTCOME, {})] if owed else [])
    log.retry_pending()
    assert tasks == [log._settle] * asked
