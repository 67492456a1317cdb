"""``status.json``: what is new is there after the look that found it; one that finds nothing new writes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from enforcer.runtime import files
from enforcer.status.node_status_file import LOOKS, SECONDS, StatusFile


class Looks:
    def __init__(self, folder: Path) -> None:
        self.path, self.file, self.now, self.number = folder / "status.json", StatusFile(folder), 1000.0, 0

    def put(self, used: int = 1, later: float = 0.01) -> bool:
        """One look; whether it wrote the file."""
        before, self.now, self.number = self.reported().get("time"), self.now + later, self.number + 1
        found = {"time": self.number, "used": used}
        if self.file.wants(found, self.now):
            self.file.put(found, self.now)
        return bool(self.reported().get("time") != before)

    def reported(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        return found


def test_what_changed_is_there_at_once(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    assert [looks.put(used) for used in (1, 2, 1, 3)] == [True] * 4
    assert looks.reported() == {"time": 4, "used": 3}


def test_what_is_as_it_was_is_written_every_few_looks(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    assert looks.put()
    for _ in range(3):
        assert [looks.put() for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]


def test_one_who_looks_seldom_writes_at_every_look(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    assert [looks.put(later=SECONDS) for _ in range(4)] == [True] * 4


def test_what_could_not_be_written_is_tried_again_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    looks = Looks(tmp_path)
    assert looks.put(1)
    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", full)
        assert not looks.put(2)
        assert looks.file.problem == "status.json cannot be written: no space left"
    assert looks.put(2)
    assert looks.file.problem is None
