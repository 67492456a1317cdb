"""The end of one segment, and what is cut off it."""

import hashlib
import os
from pathlib import Path

import pytest

from enforcer.audit.record import GENESIS, MAX_BYTES, ChainHead, Kind, append_hash
from enforcer.audit.recovery import lost_fields, repair_torn_tail
from enforcer.audit.segments import LogFolder
from gpushare.errors import RecordError
from tests.support.descriptors import open_below

NAME = "kills-000000000001.jsonl"
WAY_OUT = "move the folder of the audit log away, and the enforcer begins a new log"


def _lines(count: int, note: str = "") -> list[bytes]:
    head, lines = GENESIS, []
    for number in range(count):
        line, head = append_hash(head, Kind.WARNED, "t", {"n": number, "note": note})
        lines.append(line)
    return lines


def _head(lines: list[bytes]) -> ChainHead:
    head = GENESIS
    for number in range(len(lines)):
        _, head = append_hash(head, Kind.WARNED, "t", {"n": number, "note": ""})
    return head


@pytest.fixture
def folder(tmp_path: Path) -> LogFolder:
    found = LogFolder(tmp_path / "audit")
    found.open()
    return found


def _mended(folder: LogFolder, data: bytes, unwanted: int | None = None) -> tuple[ChainHead | None, bytes, bytes]:
    path = folder.path / NAME
    path.write_bytes(data)
    descriptors = open_below(folder.path.parent)
    head, rest = repair_torn_tail(folder, NAME, unwanted)
    assert open_below(folder.path.parent) == descriptors
    return head, rest, path.read_bytes()


def test_what_was_cut_off_is_reported_by_length_and_hash() -> None:
    digest = "sha256:" + hashlib.sha256(b"torn").hexdigest()
    note = "the enforcer cut off an incomplete last line, which a crash or a full disk had left"
    assert lost_fields(b"torn") == {"reason": "Recovered", "note": note, "lostBytes": 4, "lost": digest}


def test_a_segment_without_a_record_leaves_the_chain_nowhere(folder: LogFolder) -> None:
    assert _mended(folder, b"") == (None, b"", b"")
    assert _mended(folder, b"torn") == (None, b"torn", b"")


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_whole_segment_is_left_as_it_is(folder: LogFolder, count: int) -> None:
    lines = _lines(count)
    data = b"".join(lines)
    assert _mended(folder, data) == (_head(lines), b"", data)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("rest", [b"{", b"\0" * 40, b"x" * MAX_BYTES], ids=len)
def test_what_stands_after_the_last_whole_line_is_cut_off(folder: LogFolder, count: int, rest: bytes) -> None:
    lines = _lines(count)
    data = b"".join(lines)
    assert _mended(folder, data + rest) == (_head(lines), rest, data)


def test_a_longer_rest_is_no_torn_line(folder: LogFolder) -> None:
    data = b"".join(_lines(1)) + b"x" * (MAX_BYTES + 1)
    text = (
        rf"^segment {NAME} ends in 4097 bytes without a newline, more than one incomplete record can have; {WAY_OUT}$"
    )
    with pytest.raises(RecordError, match=text):
        _mended(folder, data)
    assert (folder.path / NAME).read_bytes() == data


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_last_line_with_holes_is_torn(folder: LogFolder, count: int) -> None:
    lines = _lines(count)
    holed = lines[-1][:20] + b"\0" + lines[-1][21:]
    before = b"".join(lines[:-1])
    head = _head(lines[:-1]) if count > 1 else None
    assert _mended(folder, before + holed) == (head, holed, before)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_record_that_was_taken_back_does_not_count(folder: LogFolder, count: int) -> None:
    lines = _lines(count)
    before = b"".join(lines[:-1])
    head = _head(lines[:-1]) if count > 1 else None
    assert _mended(folder, b"".join(lines), count) == (head, lines[-1], before)
    assert _mended(folder, b"".join(lines), count + 1) == (_head(lines), b"", b"".join(lines))


def test_one_that_is_torn_and_unwanted_loses_only_what_is_torn(folder: LogFolder) -> None:
    lines = _lines(2)
    assert _mended(folder, b"".join(lines) + b"torn", 2) == (_head(lines), b"torn", b"".join(lines))


def test_a_last_record_that_was_edited_is_not_built_upon_whether_wanted_or_not(folder: LogFolder) -> None:
    lines = _lines(2)
    data = lines[0] + lines[1].replace(b'"n":1', b'"n":7')
    why = "`hash` of record 2 is not the hash of its fields: the record was edited"
    text = rf"^the last record of segment {NAME} is invalid: {why}; {WAY_OUT}$"
    for unwanted in (None, 2):
        with pytest.raises(RecordError, match=text):
            _mended(folder, data, unwanted)
    assert (folder.path / NAME).read_bytes() == data


def test_of_the_longest_records_the_end_is_found_too(folder: LogFolder) -> None:
    head, lines = GENESIS, []
    for number in range(4):
        fields = {"n": number} | {f"t{each}": "x" * 512 for each in range(7)}
        fields["t7"] = "x" * (MAX_BYTES - len(append_hash(head, Kind.WARNED, "t", fields)[0]) - len(',"t7":""'))
        line, head = append_hash(head, Kind.WARNED, "t", fields)
        assert len(line) == MAX_BYTES
        lines.append(line)
    holed = lines[3][:-2] + b"\0\n"
    found, rest, left = _mended(folder, b"".join(lines[:3]) + holed)
    assert (rest, left) == (holed, b"".join(lines[:3]))
    assert found is not None
    assert found.seq == 3
    assert _mended(folder, b"".join(lines) + b"x" * MAX_BYTES)[0] == head


def test_what_is_left_is_written_again_and_synced_last(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, done = _lines(2), list[tuple[str, int]]()
    pwrite, fsync, truncate = os.pwrite, os.fsync, os.ftruncate

    def wrote(file: int, data: bytes, offset: int) -> int:
        written = pwrite(file, data[:50], offset)
        done.append(("write", offset))
        return written

    monkeypatch.setattr(os, "pwrite", wrote)

    def synced(file: int) -> None:
        done.append(("sync", 0))
        fsync(file)

    def cut(file: int, size: int) -> None:
        done.append(("cut", size))
        truncate(file, size)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "ftruncate", cut)
    assert _mended(folder, b"".join(lines) + b"torn")[2] == b"".join(lines)
    first, size = len(lines[0]), len(lines[0]) + len(lines[1])
    assert done == [("cut", size), *(("write", at) for at in range(first, size, 50)), ("sync", 0)]
