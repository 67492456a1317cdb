"""What the audit log says of itself, word for word, and to whom."""

import errno
import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit import log as audit
from enforcer.audit.log import AuditLog, segment_name, segments
from enforcer.audit.record import ChainHead, Kind, read
from enforcer.audit.retention import Retention
from enforcer.runtime.logs import NonBlockingStream
from gpushare.errors import RecordError
from tests.support.descriptors import open_below

ONE_EACH = 10
"""Bytes of a segment that no two records fit."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "utc_now", lambda: "noon")


def _records(folder: Path) -> list[dict[str, Any]]:
    return [read(line) for file in segments(folder) for line in file.read_bytes().splitlines(keepends=True)]


def _filled(folder: Path, count: int) -> list[ChainHead]:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        return [log.append(Kind.WARNED, {"n": number}) for number in range(count)]


def _text(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in {"seq", "prev", "hash"}}


@pytest.mark.usefixtures("noon")
def test_a_record_is_as_it_was_asked_for_at_the_time_it_was_written(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.GRACE_STARTED, {"pid": 7})
    assert [_text(record) for record in _records(folder)] == [{"time": "noon", "kind": "GRACE_STARTED", "pid": 7}]


@pytest.mark.usefixtures("noon")
def test_of_what_is_removed_it_says_how_much_and_where_the_rest_goes_on(folder: Path) -> None:
    heads = _filled(folder, 5)
    sizes = [path.stat().st_size for path in segments(folder)]
    with AuditLog(folder, segment_bytes=ONE_EACH, retention=Retention(segments=2)):
        pass
    kept = _records(folder)
    assert [record["seq"] for record in kept] == [4, 5, 6]
    assert _text(kept[-1]) == {
        "time": "noon",
        "kind": "PRUNED",
        "note": "the enforcer removed these segments: they exceeded enforcer.auditKeep",
        "removed": {"segments": 3, "bytes": sum(sizes[:3]), "first": 1, "last": 3, "hash": heads[2].hash},
    }


@pytest.mark.usefixtures("noon")
def test_of_what_is_cut_off_it_says_what_it_was(folder: Path) -> None:
    _filled(folder, 1)
    with segments(folder)[-1].open("ab") as file:
        file.write(b"torn")
    with AuditLog(folder):
        pass
    assert _text(_records(folder)[-1]) == {
        "time": "noon",
        "kind": "RECOVERED",
        "reason": "Recovered",
        "note": "the enforcer cut off an incomplete last line, which a crash or a full disk had left",
        "lostBytes": 4,
        "lost": "sha256:" + hashlib.sha256(b"torn").hexdigest(),
    }


def test_the_copy_has_all_that_is_written_in_its_order(folder: Path) -> None:
    _filled(folder, 5)
    with segments(folder)[-1].open("ab") as file:
        file.write(b"torn")
    copy = io.StringIO()
    log = AuditLog(folder, retention=Retention(segments=3), copy=NonBlockingStream(copy))
    log.open()
    log.append(Kind.INTENT, {"pid": 7})
    log.close()
    copied = copy.getvalue().encode().splitlines(keepends=True)
    assert [read(line)["kind"] for line in copied] == ["RECOVERED", "PRUNED", "INTENT"]
    assert b"".join(copied[1:]) == segments(folder)[-1].read_bytes()


def test_nobody_is_notified_of_what_did_not_become_durable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = io.StringIO()

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with AuditLog(folder, copy=NonBlockingStream(copy)) as log:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            with pytest.raises(RecordError):
                log.append(Kind.INTENT, {})
        log.append(Kind.WARNED, {})
    assert [read(line.encode() + b"\n")["kind"] for line in copy.getvalue().splitlines()] == ["WARNED"]
    assert not log.pressing.noted.is_set()


def test_a_head_is_kept_where_its_very_record_is_there(folder: Path) -> None:
    heads = _filled(folder, 4)
    log = AuditLog(folder)
    assert all(log.contains(head) for head in heads)
    assert not log.contains(ChainHead(2, heads[2].hash))
    assert not log.contains(ChainHead(5, heads[3].hash))
    assert not log.contains(ChainHead(0, heads[0].hash))
    segments(folder)[1].unlink()
    assert [log.contains(head) for head in heads] == [True, False, True, True]


def test_a_head_is_found_among_others_in_one_segment_beside_lines_that_do_not_hold(folder: Path) -> None:
    with AuditLog(folder) as log:
        heads = [log.append(Kind.WARNED, {"n": number}) for number in range(3)]
    file = segments(folder)[0]
    file.write_bytes(file.read_bytes().replace(b'"n":1', b'"n":7'))
    assert [log.contains(head) for head in heads] == [True, False, True]


def test_whether_a_head_is_kept_cannot_be_reported_without_the_log(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AuditLog(folder).contains(ChainHead(1, "sha256:" + "0" * 64))


def test_what_hinders_it_is_reported_until_it_does_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with AuditLog(folder) as log:
        assert log.problem is None
        text = f"the enforcer cannot write the audit log in {folder}: [Errno 5] Input/output error"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", broken)
            with pytest.raises(RecordError, match=f"^{re.escape(text)}$"):
                log.append(Kind.WARNED, {})
        assert log.problem == text
        log.append(Kind.WARNED, {})
        assert log.problem is None
        with pytest.raises(RecordError, match="is reserved for the record"):
            log.append(Kind.WARNED, {"seq": 1})
        assert "is reserved for the record" in str(log.problem)


def test_a_file_that_stands_where_the_next_segment_belongs_is_named(folder: Path) -> None:
    _filled(folder, 1)
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        (folder / segment_name(2)).write_bytes(b"precious\n")
        before = open_below(folder)
        text = f"^the audit log's next file, {segment_name(2)}, already exists and is not empty; move it "
        with pytest.raises(RecordError, match=text):
            log.append(Kind.WARNED, {})
        assert open_below(folder) <= before, "it is let go of"


def test_files_are_let_go_of(folder: Path) -> None:
    with AuditLog(folder, segment_bytes=ONE_EACH) as log:
        for number in range(4):
            log.append(Kind.WARNED, {"n": number})
            assert open_below(folder) == 2, "the folder and the present segment"
    assert open_below(folder) == 0


def test_a_segment_is_followed_by_the_next_where_it_would_grow_beyond_its_size(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.WARNED, {"n": 0})
    size = segments(folder)[0].stat().st_size
    segments(folder)[0].unlink()
    with AuditLog(folder, segment_bytes=2 * size) as log:
        for number in range(5):
            log.append(Kind.WARNED, {"n": number})
    assert [path.name for path in segments(folder)] == [segment_name(first) for first in (1, 3, 5)]


def test_a_restart_goes_on_in_the_last_segment_up_to_its_size(folder: Path) -> None:
    with AuditLog(folder) as log:
        log.append(Kind.WARNED, {"n": 0})
    size = segments(folder)[0].stat().st_size
    for number in range(1, 4):
        with AuditLog(folder, segment_bytes=2 * size) as log:
            assert log.head.seq == number
            log.append(Kind.WARNED, {"n": number})
    assert [path.name for path in segments(folder)] == [segment_name(1), segment_name(3)]


def test_by_age_the_oldest_goes_one_at_a_time(folder: Path) -> None:
    _filled(folder, 4)
    for path in segments(folder)[:2]:
        os.utime(path, (0, 0))
    for left in ([2, 3, 4, 5], [3, 4, 5, 6], [3, 4, 5, 6]):
        with AuditLog(folder, segment_bytes=ONE_EACH, retention=Retention(days=1)):
            pass
        assert [record["seq"] for record in _records(folder)] == left
