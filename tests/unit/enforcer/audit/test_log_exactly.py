"""Where exactly the audit log's limits lie, and what of its own it does not trust."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from enforcer.audit import log as audit
from enforcer.audit import reserved_space
from enforcer.audit.log import AuditLog, segment_name, segments
from enforcer.audit.record import GENESIS, REMOVED, ChainHead, Kind, append_hash, read
from enforcer.audit.retention import Retention
from gpushare.errors import RecordError
from tests.support.descriptors import path_of

ONE_EACH = 10
"""Bytes of a segment that no two records fit."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def found(folder: Path) -> dict[str, list[str]]:
    """The kinds of the records in each segment."""
    return {path.name: [read(line)["kind"] for line in _lines(path)] for path in segments(folder)}


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def broken(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_record_has_the_time_at_which_it_was_first_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.audit.log.utc_now", iter(["one", "two", "three"]).__next__)
    with AuditLog(folder) as log:
        log.append(Kind.WARNED, {})
        log.append(Kind.WARNED, {})
    assert [read(line)["time"] for line in _lines(segments(folder)[0])] == ["one", "two"]


def test_a_log_that_is_opened_and_not_written_to_has_no_segment(folder: Path) -> None:
    with AuditLog(folder):
        pass
    assert found(folder) == {}


def _torn(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
    with segments(folder)[0].open("ab") as file:
        file.write(b'{"seq":2')


def test_what_was_cut_off_is_reported_in_the_segment_it_was_cut_off_from(folder: Path) -> None:
    _torn(folder)
    with AuditLog(folder):
        pass
    assert found(folder) == {segment_name(1): ["INTENT", "RECOVERED"]}


def test_after_a_sync_that_failed_it_is_reported_in_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _torn(folder)
    log = AuditLog(folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        with pytest.raises(RecordError):
            log.open()
    log.open()
    log.close()
    assert found(folder) == {segment_name(1): ["INTENT"], segment_name(2): ["RECOVERED"]}


def test_what_another_wrote_while_we_were_away_is_taken_up(folder: Path) -> None:
    log = AuditLog(folder)
    for other in (AuditLog(folder), AuditLog(folder)):
        with log:
            log.append(Kind.WARNED, {})
        with other:
            other.append(Kind.WARNED, {})
    log.open()
    assert (log.head.seq, found(folder)) == (4, {segment_name(1): ["WARNED"] * 4})
    log.close()


def test_a_file_that_cannot_be_closed_is_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close
    log = AuditLog(folder)
    log.append(Kind.WARNED, {})

    def fails(file: int) -> None:
        segment = path_of(file).endswith(".jsonl")
        close(file)
        if segment:
            broken()

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fails)
        log.close()
    log.append(Kind.WARNED, {})
    log.close()
    assert found(folder) == {segment_name(1): ["WARNED"] * 2}


def test_as_many_segments_as_are_asked_for_are_kept_beside_the_present_one(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH, retention=Retention(segments=2)) as log:
        for number in range(1, 8):
            log.append(Kind.WARNED, {})
            assert len(segments(folder)) == min(number, 3)


def _claimed(folder: Path, last: int) -> None:
    """A log of two segments, the second of which says that all up to so far was removed."""
    folder.mkdir(mode=0o700)
    head: ChainHead = GENESIS
    for number, (kind, fields) in enumerate(((Kind.WARNED, {}), (Kind.PRUNED, {REMOVED: {"last": last}})), 1):
        line, head = append_hash(head, kind, "noon", fields)
        (folder / segment_name(number)).write_bytes(line)


@pytest.mark.parametrize(("last", "left"), [(1, [2]), (2, [1, 2]), (3, [1, 2])])
def test_no_record_has_itself_removed(folder: Path, last: int, left: list[int]) -> None:
    _claimed(folder, last)
    with AuditLog(folder):
        pass
    assert list(found(folder)) == [segment_name(number) for number in left]


def test_what_has_a_name_that_we_do_not_give_is_never_removed(folder: Path) -> None:
    _claimed(folder, 1)
    stranger = folder / "kills-0.jsonl"
    stranger.touch(mode=0o600)
    with AuditLog(folder):
        pass
    assert [path.name for path in segments(folder)] == [stranger.name, segment_name(2)]


@pytest.mark.parametrize(("spare", "pids"), [(-1, [2, 3]), (0, [1, 2, 3])])
def test_the_end_is_searched_until_it_is_longer_than_need_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spare: int, pids: list[int]
) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for pid in range(4):
            log.append(Kind.INTENT, {"pid": pid})
    (size,) = {path.stat().st_size for path in segments(folder)}
    monkeypatch.setattr(audit, "RECENT_BYTES", 2 * size + spare)
    assert [record["pid"] for record in AuditLog(folder).open()] == pids


def test_an_answer_to_an_intent_of_before_what_is_searched_answers_no_other(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        log.append(Kind.OUTCOME, {"intent": 77})
    assert [record["pid"] for record in AuditLog(folder).open()] == [1]


def test_a_segment_whose_name_is_not_its_first_records_says_nothing_of_what_may_be_removed(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for number in range(6):
            log.append(Kind.WARNED, {"n": number})
    follower = segments(folder)[4]
    follower.rename(follower.with_stem(f"{follower.stem}-"))
    with AuditLog(folder, segment_bytes=ONE_EACH, retention=Retention(segments=2)):
        pass
    assert [read(path.read_bytes())["kind"] for path in segments(folder)] == ["WARNED"] * 6


@pytest.mark.parametrize("size", [0, 4096])
def test_so_much_room_is_reserved_as_was_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    asked: list[int] = []
    monkeypatch.setattr(reserved_space, "preallocate", lambda _, wanted: asked.append(wanted))
    with AuditLog(folder, reserve_bytes=size):
        pass
    assert asked == [size] * (size > 0)


def test_each_change_by_others_is_counted_before_the_next_record(folder: Path) -> None:
    with AuditLog(folder, reserve_bytes=0) as log:
        log.append(Kind.WARNED, {})
        assert log.written[2] == 0
        for count in (1, 2):
            with segments(folder)[-1].open("ab") as other:
                other.write(b"x")
            log.append(Kind.WARNED, {})
            assert log.written[2] == count


def test_what_others_add_while_a_record_is_written_counts_as_a_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def added(file: int) -> None:
        os.write(file, b"x")

    with AuditLog(folder, reserve_bytes=0) as log:
        with monkeypatch.context() as patched:
            patched.setattr("enforcer.audit.log.os.fdatasync", added)
            log.append(Kind.WARNED, {})
        assert log.written[1] is None
        log.append(Kind.WARNED, {})
        assert log.written[2] == 1


def test_a_record_is_there_also_where_its_file_cannot_be_looked_at_afterwards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AuditLog(folder, reserve_bytes=0) as log:
        log.append(Kind.WARNED, {})
        with monkeypatch.context() as patched:
            patched.setattr(AuditLog, "_note_extent", _blindly(AuditLog._note_extent, patched))
            head = log.append(Kind.WARNED, {})
        assert (head.seq, log.written[1], log.problem) == (2, None, None)


def _blindly(note: Callable[[AuditLog], None], patched: pytest.MonkeyPatch) -> Callable[[AuditLog], None]:
    def blind(log: AuditLog) -> None:
        patched.setattr(os, "fstat", broken)
        note(log)

    return blind


def test_space_is_reserved_again_once_there_is_some_without_a_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(reserved_space, "preallocate", broken)
        with AuditLog(folder) as log:
            log.reserve()
            assert log.shortage is not None
            patched.undo()
            log.reserve()
            assert log.shortage is None
    log.reserve()
    assert log.problem is None, "nothing is open any more"
