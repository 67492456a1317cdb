"""Following the logs of MPS: nothing twice, nothing without end, no link, and files that stay small."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from enforcer.mps import log_tailer
from enforcer.mps.launcher import folder_of
from enforcer.mps.log_tailer import LINES, LogTail
from tests.support.wiring import daemons_on
from tests.unit.enforcer.made import GPU, OTHER_GPU

HEAD = "[2026-11-21 10:00:00.123 Control 4711] "


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mps" / folder_of(GPU) / "log"
    folder.mkdir(parents=True)
    return folder


def following(run: Path, limit: int = log_tailer.LIMIT) -> LogTail:
    return LogTail(run, daemons_on([GPU, OTHER_GPU]), limit)


def looked(follower: LogTail) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        follower.poll()
    return list(logs)  # type: ignore[arg-type]


def texts(follower: LogTail) -> list[str]:
    return [each["line"] for each in looked(follower) if "line" in each]


def add(file: Path, text: str | bytes) -> None:
    with file.open("ab") as opened:
        opened.write(text.encode() if isinstance(text, str) else text)


def test_each_line_is_passed_on_once_with_its_gpu_and_its_weight(folder: Path, tmp_path: Path) -> None:
    follower = following(tmp_path)
    add(folder / "control.log", f"{HEAD}Server 9 exited with status 1\n{HEAD}Cmd:quit\n{HEAD}NEW UI\n")
    said = [{name: each[name] for name in ("log_level", "gpu", "file")} for each in looked(follower)]
    same = {"gpu": GPU, "file": "control.log"}
    assert said == [
        {"log_level": "warning"} | same,
        {"log_level": "info"} | same,
        {"log_level": "debug"} | same,
    ]
    assert looked(follower) == []
    add(folder / "server.log", f"{HEAD}one more\n")
    assert texts(follower) == ["one more"]


def test_what_stood_there_before_we_came_is_not_said_again(folder: Path, tmp_path: Path) -> None:
    add(folder / "control.log", "old\n")
    follower = following(tmp_path)
    add(folder / "control.log", "new\n")
    add(folder / "server.log", "from its beginning\n")
    assert texts(follower) == ["new", "from its beginning"]


def test_half_a_line_waits_for_its_other_half(folder: Path, tmp_path: Path) -> None:
    follower = following(tmp_path)
    add(folder / "control.log", "first\nhal")
    assert texts(follower) == ["first"]
    add(folder / "control.log", "f\n")
    assert texts(follower) == ["half"]


def test_a_file_that_was_cut_or_replaced_is_read_from_its_front(folder: Path, tmp_path: Path) -> None:
    follower, file = following(tmp_path), folder / "control.log"
    add(file, "a long enough first line\nand a half")
    assert len(texts(follower)) == 1
    os.truncate(file, 0)
    add(file, "cut\n")
    assert texts(follower) == ["cut"]
    file.rename(folder / "control.log.1")
    add(file, "in its place, and longer than what was there\n")
    assert texts(follower) == ["in its place, and longer than what was there"]
    file.unlink()
    assert looked(follower) == []
    add(file, "back\n")
    assert texts(follower) == ["back"]


def test_links_pipes_and_folders_are_not_followed_and_reported_once(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    add(secret, "secret\n")
    (folder / "control.log").symlink_to(secret)
    os.mkfifo(folder / "server.log")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    add(elsewhere / "server.log", "elsewhere\n")
    (folder / "other").symlink_to(elsewhere)
    follower = following(tmp_path, limit=0)
    said = looked(follower)
    assert [(each["event"], each["log_level"]) for each in said] == [("MPS log not read", "warning")] * 2
    assert looked(follower) == []
    assert secret.read_text() == "secret\n", "and not cut either"
    (folder / "control.log").unlink()
    add(folder / "control.log", "well again\n")
    assert texts(follower) == ["well again"]


def test_a_log_directory_that_is_a_link_is_not_entered(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "away")
    add(tmp_path / "away" / "control.log", "secret\n")
    follower = following(tmp_path)
    folder.symlink_to(tmp_path / "away")
    assert texts(follower) == []


def test_of_a_flood_a_few_lines_are_passed_on_and_the_others_counted(folder: Path, tmp_path: Path) -> None:
    follower = following(tmp_path)
    add(folder / "server.log", "".join(f"{HEAD}Server {number} exited with status 1\n" for number in range(500)))
    *lines, more = looked(follower)
    assert (len(lines), more["left_out"], more["log_level"]) == (LINES, {"trouble": 500 - LINES}, "info")


def test_of_more_than_a_piece_the_end_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_tailer, "PIECE", 100)
    follower = following(tmp_path)
    add(folder / "server.log", b"x" * 950 + b"\n" + b"y" * 30 + b"\nlast\n")
    *lines, more = looked(follower)
    assert [each["line"] for each in lines] == ["y" * 30, "last"]
    assert (more["skipped_bytes"], more["log_level"]) == (887, "info")
    add(folder / "server.log", "next\n")
    assert texts(follower) == ["next"]
    add(folder / "server.log", b"\xff\x00" * 5000)
    assert texts(follower) == []


@contextmanager
def writing(file: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("flags", [os.O_APPEND, 0], ids=["appends", "does not append"])
def test_a_file_that_grows_too_long_is_cut_and_its_writer_is_read_on(flags: int, folder: Path, tmp_path: Path) -> None:
    follower, limit, line = following(tmp_path, limit=64 * 1024), 64 * 1024, b"z" * 99 + b"\n"
    with writing(folder / "server.log", flags) as writer:
        for turn in range(40):
            for _ in range(50):
                os.write(writer, line)
            os.write(writer, b"turn %d, ha" % turn)
            said = looked(follower)
            assert sum(sum(each.get("left_out", {}).values()) for each in said) + len(said) - 1 == 50, "none is lost"
            assert not any(each.get("skipped_bytes") for each in said)
            assert (folder / "server.log").stat().st_blocks * 512 <= limit
            os.write(writer, b"lf and half\n")
            assert texts(follower) == [f"turn {turn}, half and half"]


def test_what_has_another_name_elsewhere_is_not_cut(folder: Path, tmp_path: Path) -> None:
    add(tmp_path / "other", b"z" * 9999 + b"\n")
    os.link(tmp_path / "other", folder / "server.log")
    follower = following(tmp_path, limit=4096)
    follower.poll()
    assert (tmp_path / "other").stat().st_size == 10000
