"""What is removed from the front of the audit log, what is reserved for a full disk, and what a crash leaves."""

import errno
import os
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit import log as audit
from enforcer.audit import reserved_space
from enforcer.audit.log import AuditLog, segment_name, segments
from enforcer.audit.record import REMOVED, ChainHead, Kind, VerifyResult, append_hash, head_of, read, verify
from enforcer.audit.retention import Retention
from enforcer.audit.segments import LogFolder
from gpushare.errors import RecordError

ONE_EACH = 10
"""Bytes of a segment that no two records fit."""


def lines(folder: Path) -> list[bytes]:
    return list(chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder)))


def whole(folder: Path, anchor: ChainHead | None = None) -> VerifyResult:
    return verify(lines(folder), anchor=anchor)


def kinds(folder: Path) -> list[str]:
    return [read(line)["kind"] for line in lines(folder)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def keeping(folder: Path, count: int) -> AuditLog:
    return AuditLog(folder, segment_bytes=ONE_EACH, retention=Retention(segments=count))


def test_what_is_removed_is_reported_and_the_rest_holds(folder: Path) -> None:
    with keeping(folder, 3) as log:
        heads = [log.append(Kind.WARNED, {"n": number}) for number in range(9)]
    decision = whole(folder)
    assert decision.ok
    assert len(segments(folder)) <= 5
    pruned = [record for record in map(read, lines(folder)) if record["kind"] == "PRUNED"]
    first = read(lines(folder)[0])
    assert pruned[-1][REMOVED]["last"] == first["seq"] - 1
    assert pruned[-1][REMOVED]["hash"] == first["prev"]
    assert pruned[-1][REMOVED]["bytes"] > 100
    assert whole(folder, heads[-1]).ok
    old = whole(folder, heads[0])
    assert not old.ok
    assert "the enforcer pruned the anchor's record" in (old.problem or "")


def test_the_head_at_which_the_log_was_cut_is_an_anchor_that_holds(folder: Path) -> None:
    with keeping(folder, 2) as log:
        for number in range(9):
            log.append(Kind.WARNED, {"n": number})
    removed = [record for record in map(read, lines(folder)) if record["kind"] == "PRUNED"][-1][REMOVED]
    assert whole(folder, ChainHead(removed["last"], removed["hash"])).ok
    forged = whole(folder, ChainHead(removed["last"], "sha256:" + "7" * 64))
    assert forged.line == 1
    assert "replaced" in (forged.problem or "")


def test_more_removed_than_was_reported_is_found_at_the_first_line(folder: Path) -> None:
    with keeping(folder, 4) as log:
        for number in range(9):
            log.append(Kind.WARNED, {"n": number})
    segments(folder)[0].unlink()
    decision = whole(folder)
    assert (decision.line, decision.records) == (1, 0)
    assert "missing before record" in (decision.problem or "")


def test_an_edit_in_a_pruned_log_is_found_where_it_is(folder: Path) -> None:
    with keeping(folder, 4) as log:
        for number in range(9):
            log.append(Kind.WARNED, {"n": number})
    all_ = lines(folder)
    assert "PRUNED" in kinds(folder)[2:]
    all_[1] = all_[1].replace(b"Z", b"z")
    assert verify(all_).line == 2


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_removing_that_a_crash_cut_short_still_verifies_and_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    unlink, done = os.unlink, list[Any]()

    def crash(name: Any, *, dir_fd: int | None = None) -> None:
        if len(done) == removed:
            raise OSError(errno.EIO, "Input/output error")
        done.append(name)
        unlink(name, dir_fd=dir_fd)

    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for number in range(6):
            log.append(Kind.WARNED, {"n": number})
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", crash)
        keeping(folder, 2).open()
    assert len(segments(folder)) == 7 - removed
    assert whole(folder).ok
    with keeping(folder, 2) as log:
        assert whole(folder).ok
        assert read(lines(folder)[0])["seq"] == 5
        log.append(Kind.WARNED, {})
    assert whole(folder).ok


def test_restarts_remove_no_more_than_what_is_too_much(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for number in range(6):
            log.append(Kind.WARNED, {"n": number})
    found = []
    for _ in range(4):
        keeping(folder, 2).open()
        found.append(kinds(folder))
    assert found == [["WARNED", "WARNED", "PRUNED"]] * 4


def test_a_segment_whose_follower_does_not_hold_is_kept(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for number in range(6):
            log.append(Kind.WARNED, {"n": number})
    for file in segments(folder)[1:5]:
        file.write_bytes(file.read_bytes().replace(b'"n":', b'"m":'))
    with keeping(folder, 2) as log:
        log.append(Kind.WARNED, {})
    assert "PRUNED" not in [read(file.read_bytes())["kind"] for file in segments(folder)[5:]]
    assert len(segments(folder)) == 7


def test_segments_that_are_gone_between_two_looks_are_let_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with keeping(folder, 99) as log:
        for number in range(6):
            log.append(Kind.WARNED, {"n": number})
    names, shown = LogFolder.names, chain([99, 0], repeat(99))
    with keeping(folder, 2) as log:
        monkeypatch.setattr(LogFolder, "names", lambda self: names(self)[: next(shown)])
        log.append(Kind.WARNED, {"n": 7})
    assert whole(folder).ok


def full_but_for_the_reserve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on only blocks that were reserved can be written; returns what is written to."""
    inode, written, write = (folder / reserved_space.NAME).stat().st_ino, [], os.write

    def limited(file: int, data: bytes) -> int:
        if os.fstat(file).st_ino != inode:
            write(file, data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(file)
        return write(file, data)

    def none_left(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", limited)
    monkeypatch.setattr(reserved_space, "preallocate", none_left)
    return written


def test_on_a_full_disk_the_log_goes_on_in_the_room_reserved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        assert log.shortage is None
        with monkeypatch.context() as patched:
            written = full_but_for_the_reserve(folder, patched)
            for pid in (2, 3, 4):
                log.append(Kind.INTENT, {"pid": pid})
            assert len(written) == 3
            assert "is full" in str(log.shortage)
            assert log.problem is None
        log.append(Kind.OUTCOME, {"intent": 4})
        assert log.shortage is None
        assert (folder / reserved_space.NAME).stat().st_blocks * 512 >= reserved_space.BYTES
    assert kinds(folder) == ["INTENT"] * 4 + ["OUTCOME"]
    assert [path.name for path in segments(folder)] == [segment_name(1), segment_name(2)]
    assert whole(folder).ok


def test_once_nothing_is_left_of_it_nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        (folder / reserved_space.NAME).unlink()
        (folder / reserved_space.NAME).touch()
        full_but_for_the_reserve(folder, monkeypatch)
        (folder / reserved_space.NAME).unlink()
        with pytest.raises(RecordError, match="No space left"):
            log.append(Kind.INTENT, {"pid": 2})
        assert "No space left" in (log.problem or "")
    assert kinds(folder) == ["INTENT"]


def test_a_torn_tail_on_a_full_disk_is_reported_in_the_room_reserved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
    with segments(folder)[-1].open("ab") as file:
        file.write(b'{"seq":2')
    full_but_for_the_reserve(folder, monkeypatch)
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 2})
    assert kinds(folder) == ["INTENT", "RECOVERED", "INTENT"]
    assert whole(folder).ok


@pytest.mark.parametrize("where", ["name of the reserve", "name of the next segment"])
def test_what_has_the_name_already_is_never_lost(folder: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        full_but_for_the_reserve(folder, monkeypatch)
        precious = folder / (reserved_space.NAME if where == "name of the reserve" else segment_name(2))
        precious.write_text("precious\n")
        for _ in range(2):
            with pytest.raises(RecordError):
                log.append(Kind.INTENT, {"pid": 2})
            assert precious.read_text() == "precious\n"


def test_where_no_room_can_be_reserved_that_is_reported_and_the_log_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(reserved_space, "preallocate", never)
    with AuditLog(folder) as log:
        log.append(Kind.OUTCOME, {})
        assert "Operation not supported" in str(log.shortage)
    assert not (folder / reserved_space.NAME).exists()
    assert whole(folder).records == 1


def _holed(line: bytes) -> bytes:
    return bytes(len(line) - 40) + line[-40:]


def _empty(line: bytes) -> bytes:
    return bytes(len(line))


@pytest.mark.parametrize("left", [_holed, _empty])
@pytest.mark.parametrize("before", [0, 2])
def test_blocks_that_never_reached_the_disk_are_a_torn_tail(
    folder: Path, left: Callable[[bytes], bytes], before: int
) -> None:
    with AuditLog(folder) as log:
        for pid in range(before + 1):
            log.append(Kind.INTENT, {"pid": pid})
    file = segments(folder)[-1]
    data = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(data[:-1]) + left(data[-1]))
    with AuditLog(folder) as log:
        log.append(Kind.OUTCOME, {})
    assert kinds(folder) == ["INTENT"] * before + ["RECOVERED", "OUTCOME"]
    assert whole(folder).ok


@pytest.mark.parametrize("torn", [0, 30])
def test_a_record_that_could_not_be_taken_back_does_not_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, torn: int
) -> None:
    """The kernel shows it, but nobody was reported that it is durable, nor may it be."""

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            patched.setattr(os, "ftruncate", broken)
            for _ in range(2):
                with pytest.raises(RecordError):
                    log.append(Kind.INTENT, {"pid": 2})
        file = segments(folder)[0]
        os.truncate(file, file.stat().st_size - torn)
        log.append(Kind.INTENT, {"pid": 3})
    assert kinds(folder) == ["INTENT", "RECOVERED", "INTENT"]
    assert read(lines(folder)[-1])["pid"] == 3
    assert whole(folder).ok


def test_what_a_restart_reads_it_writes_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that failed for an enforcer before us leaves the kernel showing what the disk does not hold."""
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
    calls: list[tuple[str, bytes]] = []
    pwrite, fsync = os.pwrite, os.fsync

    def wrote(file: int, data: bytes, offset: int) -> int:
        calls.append(("write", data[:7]))
        return pwrite(file, data[:7], offset)

    def synced(file: int) -> None:
        calls.append(("sync", b""))
        fsync(file)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", wrote)
        patched.setattr(os, "fsync", synced)
        AuditLog(folder).open()
    begun = next(number for number, call in enumerate(calls) if call[0] == "write")
    again = b"".join(data for _, data in calls)
    assert again == segments(folder)[0].read_bytes()
    assert ("sync", b"") in calls[begun + len(again) // 7 :]
    assert whole(folder).records == 1


def test_a_parent_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(RecordError, match="chmod go-w"):
        AuditLog(tmp_path / "state" / "audit").open()


def test_a_second_name_for_the_segment_ends_it(folder: Path, tmp_path: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.WARNED, {})
        (tmp_path / "elsewhere").hardlink_to(segments(folder)[-1])
        before = (tmp_path / "elsewhere").read_bytes()
        log.append(Kind.WARNED, {"pid": 1})
    assert (tmp_path / "elsewhere").read_bytes() == before
    assert whole(folder).records == 2


def test_intents_are_looked_for_over_small_segments(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for pid in range(9):
            log.append(Kind.INTENT, {"pid": pid})
        log.append(Kind.OUTCOME, {"intent": 4})
    assert [record["pid"] for record in AuditLog(folder).open()] == [0, 1, 2, 4, 5, 6, 7, 8]


def test_an_intent_whose_process_hung_for_long_is_answered_however_much_was_written_since(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=200 * 1024) as log:
        log.append(Kind.INTENT, {"pid": 1})
        log.append(Kind.INTENT, {"pid": 2})
    made = folder / segment_name(3)
    head, text = head_of(read(lines(folder)[-1])), b""
    while len(text) < 300 * 1024:
        line, head = append_hash(head, Kind.GRACE_STARTED, "2026-11-20T22:16:05.123Z", {"container": "x" * 400})
        text += line
    made.write_bytes(text)
    made.chmod(0o600)
    with AuditLog(folder, segment_bytes=200 * 1024) as log:
        log.append(Kind.OUTCOME, {"intent": 1})
    assert whole(folder).ok
    assert [record["pid"] for record in AuditLog(folder).open()] == [2]


def test_only_so_much_of_the_end_is_searched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "RECENT_BYTES", 100)
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for pid in range(9):
            log.append(Kind.INTENT, {"pid": pid})
    assert [record["pid"] for record in AuditLog(folder).open()] == [8]


def test_a_field_that_is_the_records_own_is_refused(folder: Path) -> None:
    with AuditLog(folder) as log, pytest.raises(RecordError, match="'hash' is reserved"):
        log.append(Kind.WARNED, {"hash": "x"})
