"""What is added to a container's termination message, and what is left alone."""

import os
from pathlib import Path

import pytest

from enforcer.status.messages import NOTE_BYTES
from enforcer.status.termination_message import MOST_BYTES, append


def test_a_line_is_added_and_what_the_container_wrote_stays(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.touch()
    append(file, "Killed: first")
    append(file, "Killed: second")
    assert file.read_text() == "Killed: first\nKilled: second"


def test_the_file_does_not_grow_without_end(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_bytes(b"x" * (MOST_BYTES + 1))
    append(file, "Killed: it")
    assert file.read_text() == "Killed: it"
    append(file, "y" * MOST_BYTES)
    assert file.stat().st_size < 2 * NOTE_BYTES


@pytest.mark.parametrize("kind", ["nothing", "link", "pipe", "folder"])
def test_what_is_no_file_of_the_kubelets_is_left_alone_and_nobody_waits(tmp_path: Path, kind: str) -> None:
    file, other = tmp_path / "message", tmp_path / "other"
    other.write_text("another's")
    if kind == "link":
        file.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    append(file, "Killed: it")
    assert other.read_text() == "another's"
