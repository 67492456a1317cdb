"""The audit log's directory by itself: names, links, owners, and what a segment's lines are."""

import errno
import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from enforcer.audit.record import MAX_BYTES
from enforcer.audit.segments import Extent, LogFolder, first_of, lines_of, segment_name, segments
from gpushare.errors import RecordError
from tests.support.descriptors import open_below, path_of


@pytest.fixture
def folder(tmp_path: Path) -> LogFolder:
    found = LogFolder(tmp_path / "state" / "audit")
    found.open()
    return found


def test_a_segment_is_named_by_its_first_record_and_names_sort_as_numbers_do() -> None:
    assert segment_name(7) == "kills-000000000007.jsonl"
    assert [first_of(segment_name(number)) for number in (1, 999_999_999_999, 10**14)] == [1, 999_999_999_999, 10**14]


@pytest.mark.parametrize(
    "name",
    [
        "kills-00000000007.jsonl", "kills-" + "1" * 16 + ".jsonl", "kills-000000000007xjsonl", "reserve",
        "xkills-000000000007.jsonl", "kills-000000000007.jsonl.gz", "kills-\u0660" + "0" * 11 + ".jsonl",
    ],
)  # fmt: skip
def test_no_other_name_is_one_we_give(name: str) -> None:
    assert first_of(name) is None


def test_what_begins_and_ends_like_a_segment_is_part_of_the_log_and_nothing_else_is(folder: LogFolder) -> None:
    ours = ["kills-000000000001.jsonl", "kills-x.jsonl"]
    for name in (*reversed(ours), "kills-000000000001", "a.jsonl", "reserve"):
        (folder.path / name).touch()
    assert folder.names() == ours
    assert folder.paths() == segments(folder.path) == [folder.path / name for name in ours]


def test_lines_come_with_their_ends_and_one_that_is_too_long_in_pieces(tmp_path: Path) -> None:
    file, longest = tmp_path / "log", b"x" * MAX_BYTES + b"\n"
    file.write_bytes(b"one\n" + longest + b"y" * (MAX_BYTES + 2) + b"\nlast")
    assert list(lines_of(file)) == [b"one\n", longest, b"y" * (MAX_BYTES + 1), b"y\n", b"last"]


def _asked(file: Path, *changes: bytes) -> tuple[list[bytes], int]:
    """Read a file that changes each time it is asked whether to look again; what was read, and how often that was."""
    pending, asked = list(changes), list[bytes]()

    def again() -> bool:
        asked.append(file.read_bytes())
        if pending:
            file.write_bytes(pending.pop(0))
            return True
        return False

    return list(lines_of(file, again)), len(asked)


@pytest.mark.parametrize("begun", [b"t", b"tw", b"x" * (MAX_BYTES - 1), b"x" * MAX_BYTES], ids=len)
def test_a_last_line_without_an_end_is_looked_at_again_until_it_has_one(tmp_path: Path, begun: bytes) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n" + begun)
    assert _asked(file, b"one\n" + begun, b"one\ntwo\n") == ([b"one\n", b"two\n"], 2)
    file.write_bytes(b"one\n" + begun)
    assert _asked(file) == ([b"one\n", begun], 1)


def test_what_was_taken_back_meanwhile_is_no_line_and_what_stands_in_its_place_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo")
    assert _asked(file, b"one\n") == ([b"one\n"], 1)
    file.write_bytes(b"one\ntwo")
    assert _asked(file, b"one\nTWO and a half\nthree\n") == ([b"one\n", b"TWO and a half\n", b"three\n"], 1)
    file.write_bytes(b"one\ntwo")
    long = b"y" * (MAX_BYTES + 2) + b"\n"
    assert _asked(file, b"one\n" + long) == ([b"one\n", long[: MAX_BYTES + 1], b"y\n"], 1)


def test_lines_that_have_an_end_or_are_no_records_are_not_looked_at_again(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n" + b"x" * (MAX_BYTES + 1))
    assert _asked(file) == ([b"one\n", b"x" * (MAX_BYTES + 1)], 0)
    file.write_bytes(b"one\ntwo\n")
    assert _asked(file) == ([b"one\n", b"two\n"], 0)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _device])
def test_what_might_have_no_end_is_not_read(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "log")
    with pytest.raises(OSError, match="the segment is not a regular file") as raised:
        next(lines_of(tmp_path / "log"))
    assert (raised.value.errno, raised.value.strerror) == (errno.EINVAL, "the segment is not a regular file")
    assert raised.value.filename == str(tmp_path / "log")


def test_a_directory_in_the_place_of_a_segment_is_named_and_not_kept_open(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    descriptors = open_below(tmp_path)
    with pytest.raises(IsADirectoryError) as raised:
        next(lines_of(tmp_path / "log"))
    assert raised.value.filename == str(tmp_path / "log")
    assert open_below(tmp_path) == descriptors


def test_it_is_made_for_us_alone_with_the_folders_above_it_and_may_be_opened_again(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path / "a" / "b" / "audit")
    folder.open()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    os.close(folder.file("kept", make=True))
    descriptors = open_below(folder.path.parent)
    folder.open()
    assert open_below(folder.path.parent) == descriptors, "it is open already"
    folder.close()
    folder.close()
    assert open_below(folder.path.parent) == descriptors - 1
    folder.open()
    assert folder.found("kept").st_size == 0
    folder.close()


def test_its_own_entry_and_that_of_the_folder_above_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path_of(file)))
    folder = LogFolder(tmp_path / "state" / "audit")
    folder.open()
    assert synced == [str(tmp_path / "state"), str(tmp_path)]
    folder.sync()
    assert synced[2:] == [str(folder.path)]


def test_a_grandparent_that_cannot_be_synced_hinders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: int) -> None:
        if path_of(file) == str(tmp_path):
            raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "fsync", fails)
    folder = LogFolder(tmp_path / "state" / "audit")
    folder.open()
    assert folder.names() == []


def _refused(folder: LogFolder) -> str:
    descriptors = open_below(folder.path.parent)
    with pytest.raises(RecordError) as raised:
        folder.open()
    assert open_below(folder.path.parent) == descriptors, "and nothing stays open"
    return raised.value.message


@pytest.mark.parametrize("bit", [0o001, 0o002, 0o004, 0o010, 0o020, 0o040])
def test_a_folder_that_others_may_do_anything_with_is_refused(tmp_path: Path, bit: int) -> None:
    folder = LogFolder(tmp_path / "audit")
    folder.path.mkdir()
    folder.path.chmod(0o700 | bit)
    me = os.geteuid()
    assert _refused(folder) == (
        f"{folder.path} or its parent has owner {me} and mode {0o700 | bit:04o}, so another user could "
        f"change the audit log; run chown {me} and chmod 0700"
    )


@pytest.mark.parametrize(("mode", "fine"), [(0o755, True), (0o1777, True), (0o720, False), (0o702, False)])
def test_its_parent_may_be_read_by_others_and_written_by_none(tmp_path: Path, mode: int, *, fine: bool) -> None:
    folder = LogFolder(tmp_path / "state" / "audit")
    folder.path.mkdir(parents=True, mode=0o700)
    folder.path.parent.chmod(mode)
    if fine:
        folder.open()
        folder.close()
        return
    me = os.geteuid()
    assert _refused(folder) == (
        f"{folder.path} or its parent has owner {me} and mode {mode:04o}, so another user could "
        f"change the audit log; run chown {me} and chmod go-w its parent"
    )


def test_a_folder_of_somebody_elses_is_refused_and_one_in_roots_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LogFolder(tmp_path / "state" / "audit")
    folder.path.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert "run chown 4711 and chmod 0700" in _refused(folder)
    fstat = os.fstat

    def owned(file: int, *, parent: int) -> os.stat_result:
        found = fstat(file)
        owner = parent if found.st_ino == folder.path.parent.stat().st_ino else 4711
        return os.stat_result((*found[:4], owner, *found[5:10]))

    monkeypatch.setattr(os, "fstat", lambda file: owned(file, parent=0))
    folder.open()
    folder.close()
    monkeypatch.setattr(os, "fstat", lambda file: owned(file, parent=4712))
    assert "has owner 4712 and mode" in _refused(folder)


def test_a_file_is_made_only_where_that_is_asked_for_and_is_ours_alone(folder: LogFolder) -> None:
    with pytest.raises(FileNotFoundError):
        folder.file("new")
    file = folder.file("new", make=True)
    assert stat.S_IMODE(os.fstat(file).st_mode) == 0o600
    assert not os.get_inheritable(file)
    os.write(file, b"one")
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, b"two")
    assert (folder.path / "new").read_bytes() == b"onetwo", "it is appended to"
    os.close(file)
    file = folder.file("new", appending=False)
    os.write(file, b"TWO")
    os.close(file)
    assert (folder.path / "new").read_bytes() == b"TWOtwo"


def test_a_file_that_is_not_plain_and_ours_is_let_go_of_and_named(folder: LogFolder, tmp_path: Path) -> None:
    os.mkfifo(folder.path / "fifo")
    (folder.path / "twice").touch()
    (tmp_path / "other name").hardlink_to(folder.path / "twice")
    descriptors = open_below(folder.path.parent)
    for name in ("fifo", "twice"):
        text = re.escape(
            f"{name} in {folder.path} is not a regular file with one link and the enforcer's owner; move the file away"
        )
        with pytest.raises(RecordError, match=f"^{text}$"):
            folder.file(name)
    (folder.path / "link").symlink_to(tmp_path / "other name")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        folder.file("link")
    assert open_below(folder.path.parent) == descriptors


def test_a_file_of_somebody_elses_is_refused(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "theirs").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(RecordError, match="not a regular file with one link"):
        folder.file("theirs")


def test_a_name_is_free_where_there_is_nothing_or_an_empty_file(folder: LogFolder, tmp_path: Path) -> None:
    (folder.path / "empty").touch()
    (folder.path / "full").write_bytes(b"x")
    os.mkfifo(folder.path / "fifo")
    (tmp_path / "nothing").touch()
    (folder.path / "link").symlink_to(tmp_path / "nothing")
    free = {name: folder.is_free(name) for name in ("absent", "empty", "full", "fifo", "link")}
    assert free == {"absent": True, "empty": True, "full": False, "fifo": False, "link": False}
    assert stat.S_ISLNK(folder.found("link").st_mode)


def test_files_are_renamed_and_removed_in_the_folder_that_is_kept(folder: LogFolder) -> None:
    (folder.path / "old").write_bytes(b"x")
    (folder.path / "taken").touch()
    away = folder.path.rename(folder.path.with_name("away"))
    folder.rename("old", "taken")
    assert [each.name for each in away.iterdir()] == ["taken"]
    assert (away / "taken").read_bytes() == b"x"
    folder.remove("taken")
    folder.remove("taken")
    assert list(away.iterdir()) == []


def test_a_file_is_the_one_of_the_path_while_it_has_that_name_and_no_other(folder: LogFolder, tmp_path: Path) -> None:
    file = folder.file("log", make=True)
    assert folder.leads_to(file, "log")
    assert not folder.leads_to(file, "absent")
    (folder.path / "log2").touch()
    assert not folder.leads_to(file, "log2")
    (tmp_path / "other name").hardlink_to(folder.path / "log")
    assert not folder.leads_to(file, "log")
    (tmp_path / "other name").unlink()
    assert folder.leads_to(file, "log")
    folder.path.rename(folder.path.with_name("away"))
    folder.path.touch()
    assert not folder.leads_to(file, "log")
    os.close(file)


def test_another_file_and_one_that_was_written_or_touched_have_another_extent() -> None:
    same = {"st_dev": 1, "st_ino": 2, "st_size": 3, "st_ctime_ns": 4}
    of = [Extent.of(cast("os.stat_result", SimpleNamespace(**same | {key: 9}))) for key in same]
    assert len({Extent.of(cast("os.stat_result", SimpleNamespace(**same))), *of}) == 5
