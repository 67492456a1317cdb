"""The space reserved, by itself."""

import errno
import os
from pathlib import Path

import pytest

from enforcer.audit import reserved_space
from enforcer.audit.reserved_space import NAME, ReservedSpace, preallocate
from enforcer.audit.segments import LogFolder
from tests.support.descriptors import open_below, path_of

SIZE = 64 * 1024

FOREIGN = "a regular file with one link and the enforcer's owner"


@pytest.fixture
def folder(tmp_path: Path) -> LogFolder:
    found = LogFolder(tmp_path / "audit")
    found.open()
    return found


def _filled(folder: LogFolder) -> ReservedSpace:
    room = ReservedSpace(folder, SIZE)
    room.allocate()
    assert room.problem is None
    return room


def test_blocks_are_allocated_and_the_file_stays_empty(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        preallocate(file.fileno(), SIZE)
        found = os.fstat(file.fileno())
    assert found.st_size == 0
    assert SIZE <= found.st_blocks * 512 <= 2 * SIZE


def test_where_blocks_cannot_be_allocated_the_kernels_word_is_passed_on() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as raised:
        preallocate(-1, SIZE)
    assert (raised.value.errno, raised.value.strerror) == (errno.EBADF, "Bad file descriptor")


def test_room_is_reserved_once_and_becomes_a_segment_once(folder: LogFolder) -> None:
    room = _filled(folder)
    inode = (folder.path / NAME).stat().st_ino
    assert (folder.path / NAME).stat().st_blocks * 512 >= SIZE
    assert room.promote("kills-000000000001.jsonl")
    assert (folder.path / "kills-000000000001.jsonl").stat().st_ino == inode
    full = f"the disk of {folder.path} is full, and the audit log uses its last reserved space; free disk space"
    assert room.problem == full
    assert not room.promote("kills-000000000002.jsonl"), "there is none any more"
    room.allocate()
    assert room.problem is None
    assert (folder.path / NAME).stat().st_ino != inode


def test_none_that_was_not_reserved_becomes_anything(folder: LogFolder) -> None:
    assert ReservedSpace(folder, SIZE).promote("kills-000000000001.jsonl") is False
    assert folder.names() == []


def test_a_name_that_is_taken_is_not_taken_away_and_the_room_is_kept(folder: LogFolder) -> None:
    room = _filled(folder)
    (folder.path / "kills-000000000001.jsonl").write_bytes(b"x")
    assert room.promote("kills-000000000001.jsonl") is False
    assert room.problem is None
    assert room.promote("kills-000000000002.jsonl")


def test_room_that_is_there_is_not_reserved_again(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    room = _filled(folder)
    monkeypatch.setattr(LogFolder, "file", lambda *_, **__: pytest.fail("it is there"))
    room.allocate()


def test_blocks_that_are_there_already_are_not_asked_for_again(
    folder: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(folder)
    monkeypatch.setattr(reserved_space, "preallocate", lambda *_: pytest.fail("they are there"))
    again = ReservedSpace(folder, SIZE)
    again.allocate()
    assert again.problem is None


def test_of_too_few_blocks_the_rest_is_asked_for(folder: LogFolder) -> None:
    _filled(folder)
    ReservedSpace(folder, 4 * SIZE).allocate()
    assert (folder.path / NAME).stat().st_blocks * 512 >= 4 * SIZE


def test_where_none_is_wanted_none_is_reserved(folder: LogFolder) -> None:
    room = ReservedSpace(folder, 0)
    room.allocate()
    assert not (folder.path / NAME).exists()
    assert room.problem is None


def test_by_default_a_quarter_of_a_mebibyte_is_reserved(folder: LogFolder) -> None:
    ReservedSpace(folder).allocate()
    assert (folder.path / NAME).stat().st_blocks * 512 >= 256 * 1024


def test_what_is_reserved_is_durable(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(path_of(file)))
    descriptors = open_below(folder.path.parent)
    _filled(folder)
    assert synced == [str(folder.path / NAME), str(folder.path)]
    assert open_below(folder.path.parent) == descriptors


def test_what_has_the_name_stays_and_is_reported_to_be_in_the_way(folder: LogFolder) -> None:
    (folder.path / NAME).write_bytes(b"precious")
    room = ReservedSpace(folder, SIZE)
    room.allocate()
    begin = f"the enforcer cannot reserve disk space for the audit log in {folder.path}: "
    assert room.problem == f"{begin}file {NAME} exists and is not empty; move the file away"
    assert (folder.path / NAME).read_bytes() == b"precious"
    assert not room.promote("kills-000000000001.jsonl")
    (folder.path / NAME).unlink()
    os.mkfifo(folder.path / NAME)
    room.allocate()
    assert room.problem == f"{begin}{NAME} in {folder.path} is not {FOREIGN}; move the file away"
    (folder.path / NAME).unlink()
    room.allocate()
    assert room.problem is None


@pytest.mark.parametrize("fails", ["preallocate", "fsync"])
def test_what_is_left_of_a_vain_attempt_is_removed(
    folder: LogFolder, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reserved_space if fails == "preallocate" else os, fails, none_left)
    descriptors = open_below(folder.path.parent)
    room = ReservedSpace(folder, SIZE)
    room.allocate()
    assert room.problem is not None
    assert room.problem.endswith("No space left on device")
    assert not (folder.path / NAME).exists()
    assert open_below(folder.path.parent) == descriptors


def test_one_that_cannot_even_be_removed_is_reported_for_what_came_first(
    folder: LogFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def none_left(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(reserved_space, "preallocate", none_left)
    monkeypatch.setattr(LogFolder, "remove", fails)
    room = ReservedSpace(folder, SIZE)
    room.allocate()
    assert str(room.problem).endswith("No space left on device")


def test_another_enforcer_finds_what_is_reserved(folder: LogFolder) -> None:
    later = ReservedSpace(folder, SIZE)
    later.probe()
    assert not later.promote("kills-000000000001.jsonl"), "nothing is"
    _filled(folder)
    later.probe()
    assert later.promote("kills-000000000001.jsonl")


def test_an_empty_file_without_blocks_or_one_in_use_is_no_room(folder: LogFolder) -> None:
    for data in (b"", b"x" * SIZE):
        (folder.path / NAME).write_bytes(data)
        room = ReservedSpace(folder, SIZE)
        room.probe()
        assert not room.promote("kills-000000000001.jsonl")


def test_what_was_there_may_have_gone_since(folder: LogFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    room = _filled(folder)
    (folder.path / NAME).unlink()
    room.probe()
    assert not room.promote("kills-000000000001.jsonl")
    room = _filled(folder)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(LogFolder, "found", fails)
        room.probe()
    assert not room.promote("kills-000000000001.jsonl")
