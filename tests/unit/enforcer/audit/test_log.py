import errno
import os
import stat
import threading
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit import log as audit
from enforcer.audit.log import AuditLog, segment_name, segments
from enforcer.audit.record import GENESIS, Kind, VerifyResult, append_hash, read, verify
from gpushare.errors import RecordError

SMALL = 700


def whole(folder: Path) -> VerifyResult:
    return verify(chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder)))


def kinds(folder: Path) -> list[str]:
    lines = chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder))
    return [read(line)["kind"] for line in lines]


def last(folder: Path) -> Path:
    return segments(folder)[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def test_the_folder_and_its_files_are_ours_alone(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(last(folder).stat().st_mode) == 0o600


def test_the_chain_runs_over_restarts_and_segments(folder: Path) -> None:
    for start in range(5):
        with AuditLog(folder, segment_bytes=SMALL) as log:
            for number in range(4):
                log.append(Kind.INTENT, {"pid": start * 10 + number})
    decision = whole(folder)
    assert decision.ok
    assert decision.records == 20
    names = [path.name for path in segments(folder)]
    assert len(names) > 3
    assert names == [
        segment_name(read(path.read_bytes().splitlines(keepends=True)[0])["seq"]) for path in segments(folder)
    ]


def test_a_record_is_durable_before_append_returns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []

    def fdatasync(file: int) -> None:
        synced.append(os.pread(file, 10000, 0))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 7})
    assert b'"pid":7' in synced[0]


def test_a_torn_line_is_cut_off_and_reported_to_have_been(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        log.append(Kind.INTENT, {"pid": 2})
    data = last(folder).read_bytes()
    last(folder).write_bytes(data[:-30])
    with AuditLog(folder) as log:
        log.append(Kind.OUTCOME, {"pid": 3})
    assert whole(folder).ok
    assert kinds(folder) == ["INTENT", "RECOVERED", "OUTCOME"]


def test_a_torn_first_line_of_a_new_segment_is_mended(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=10) as log:
        log.append(Kind.INTENT, {"pid": 1})
        log.append(Kind.INTENT, {"pid": 2})
    last(folder).write_bytes(b'{"seq":2,"ti')
    with AuditLog(folder) as log:
        log.append(Kind.OUTCOME, {"pid": 3})
    assert kinds(folder) == ["INTENT", "RECOVERED", "OUTCOME"]
    assert whole(folder).ok


def test_an_empty_last_segment_is_used(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
    (folder / segment_name(2)).touch(mode=0o600)
    with AuditLog(folder) as log:
        log.append(Kind.OUTCOME, {})
    assert whole(folder).records == 2
    assert (folder / segment_name(2)).stat().st_size


def test_a_last_record_that_does_not_hold_stops_everything(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
    last(folder).write_bytes(last(folder).read_bytes().replace(b'"pid":1', b'"pid":2'))
    with pytest.raises(RecordError, match="was edited; move the folder of the audit log away"):
        AuditLog(folder).open()


def test_after_a_log_that_does_not_hold_nothing_is_appended_to_it(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=10) as log:
        for pid in range(3):
            log.append(Kind.WARNED, {"pid": pid})
    last(folder).write_bytes(last(folder).read_bytes().replace(b'"pid":2', b'"pid":7'))
    (folder / segment_name(4)).touch(mode=0o600)
    before = {path: path.read_bytes() for path in segments(folder)}
    log = AuditLog(folder)
    for _ in range(3):
        with pytest.raises(RecordError, match="was edited"):
            log.append(Kind.INTENT, {"pid": 3})
    assert {path: path.read_bytes() for path in segments(folder)} == before
    assert log.problem is not None
    folder.rename(folder.with_name("away"))
    log.append(Kind.INTENT, {"pid": 3})
    assert log.problem is None
    log.close()
    assert whole(folder).records == 1


def test_a_file_in_the_next_segments_place_is_not_written_to(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=10) as log:
        log.append(Kind.WARNED, {})
        (folder / segment_name(2)).write_bytes(b"precious\n")
        for _ in range(3):
            with pytest.raises(RecordError):
                log.append(Kind.INTENT, {})
    assert (folder / segment_name(2)).read_bytes() == b"precious\n"


def test_a_tail_too_long_to_be_a_torn_line_is_not_built_upon(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.WARNED, {})
    with last(folder).open("ab") as file:
        file.write(bytes(100_000))
    for attempt in (AuditLog(folder).open, lambda: AuditLog(folder).append(Kind.INTENT, {})):
        with pytest.raises(RecordError, match="move the folder of the audit log away"):
            attempt()


@pytest.mark.parametrize("taken_away", ["deleted", "renamed", "folder moved", "replaced"])
def test_a_record_never_goes_into_a_file_that_was_taken_away(folder: Path, taken_away: str) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.WARNED, {})
        file = last(folder)
        if taken_away == "folder moved":
            folder.rename(folder.with_name("away"))
        elif taken_away == "renamed":
            file.rename(file.with_name("away"))
        else:
            data = file.read_bytes()
            file.unlink()
            if taken_away == "replaced":
                file.write_bytes(data)
        log.append(Kind.INTENT, {"pid": 1})
        log.append(Kind.OUTCOME, {"intent": 2})
    assert kinds(folder)[-2:] == ["INTENT", "OUTCOME"]
    decision = whole(folder)
    assert decision.ok == (taken_away == "replaced"), "what is missing is seen to be"
    assert AuditLog(folder).open() == []


def test_a_torn_line_on_a_full_disk_is_reported_once_there_is_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
    with last(folder).open("ab") as file:
        file.write(b'{"seq":2')

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = AuditLog(folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(RecordError):
            log.open()
    log.append(Kind.OUTCOME, {"intent": 1})
    log.close()
    assert kinds(folder) == ["INTENT", "RECOVERED", "OUTCOME"]


def test_records_of_strange_shapes_do_not_stop_an_enforcer_from_starting(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    head, data = GENESIS, b""
    for kind, fields in (
        (Kind.INTENT, {"intent": [1]}),
        (Kind.OUTCOME, {"intent": [1]}),
        (Kind.OUTCOME, {"intent": {}}),
    ):
        line, head = append_hash(head, kind, "t", fields)
        data += line
    (folder / segment_name(1)).write_bytes(data)
    assert [record["seq"] for record in AuditLog(folder).open()] == [1]


def test_short_writes_are_gone_on_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        log.append(Kind.INTENT, {"pid": 2})
    assert whole(folder).records == 2


def test_a_full_disk_is_an_error_and_leaves_no_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        before = last(folder).read_bytes()

        def full(file: int, data: bytes) -> int:
            if len(data) > 60:
                return write(file, data[:50])
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            for _ in range(3):
                with pytest.raises(RecordError, match="No space left"):
                    log.append(Kind.INTENT, {"pid": 2})
        assert last(folder).read_bytes() in (before, b"")
        log.append(Kind.INTENT, {"pid": 3})
    assert whole(folder).ok
    assert whole(folder).records == 2


def test_a_failed_sync_is_an_error_and_ends_the_segment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            for _ in range(3):
                with pytest.raises(RecordError, match="Input/output error"):
                    log.append(Kind.INTENT, {"pid": 2})
        log.append(Kind.INTENT, {"pid": 3})
    assert [path.name for path in segments(folder)] == [segment_name(1), segment_name(2)]
    assert whole(folder).records == 2


def test_what_cannot_be_taken_back_is_mended_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def half(file: int, data: bytes) -> int:
        if len(data) > 60:
            return write(file, data[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    with AuditLog(folder) as log:
        log.append(Kind.INTENT, {"pid": 1})
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", half)
            patched.setattr(os, "ftruncate", refuse)
            with pytest.raises(RecordError):
                log.append(Kind.INTENT, {"pid": 2})
        log.append(Kind.INTENT, {"pid": 3})
    assert kinds(folder) == ["INTENT", "RECOVERED", "INTENT"]
    assert whole(folder).ok


def test_a_folder_others_may_write_to_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(RecordError, match="chmod 0700"):
        AuditLog(folder).open()


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="cannot write"):
        AuditLog(folder).open()


def _link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def _hard_link(path: Path, target: Path) -> None:
    path.hardlink_to(target)


def _fifo(path: Path, target: Path) -> None:
    os.mkfifo(path, 0o600)


def _directory(path: Path, target: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("trap", [_link, _hard_link, _fifo, _directory])
def test_a_segment_that_is_no_plain_file_is_refused(folder: Path, tmp_path: Path, trap: Any) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    folder.mkdir(mode=0o700)
    trap(folder / segment_name(1), target)
    log = AuditLog(folder)
    with pytest.raises(RecordError):
        log.open()
    with pytest.raises(RecordError):
        log.append(Kind.INTENT, {})
    log.close()
    assert target.read_text() == "precious"


def test_intents_nothing_was_reported_about_are_found_again(folder: Path) -> None:
    with AuditLog(folder) as log:
        for pid in range(3):
            log.append(Kind.INTENT, {"pid": pid})
        log.append(Kind.OUTCOME, {"intent": 1})
        log.append(Kind.ABORTED, {"intent": 3})
    assert [record["pid"] for record in AuditLog(folder).open()] == [1]


def test_threads_do_not_break_the_chain(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=2000) as log:
        threads = [
            threading.Thread(target=lambda: [log.append(Kind.WARNED, {"n": n}) for n in range(25)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert whole(folder).records == 100
    assert whole(folder).ok


def test_two_writers_of_one_log_are_found_where_the_second_wrote_first(folder: Path) -> None:
    """Locks of the state directory keep them apart (``enforcer.runtime.lock``); a file system may have none."""
    first, second = AuditLog(folder), AuditLog(folder)
    with first, second:
        for log in (first, second, first):
            log.append(Kind.INTENT, {"pid": id(log)})
    found = whole(folder)
    assert (found.ok, found.line, found.head.seq) == (False, 3, 2)


def test_the_time_of_a_record_is_utc() -> None:
    assert audit.utc_now().endswith("Z")
    assert len(audit.utc_now()) == len("2026-11-20T22:16:05.123Z")
