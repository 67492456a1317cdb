"""Of a process whose leader has ended, its threads say whose it is."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from enforcer.attribution import procfs
from enforcer.attribution.cgroup import Identity
from tests.unit.enforcer.attribution.test_procfs import GROUP, OURS, PLAIN, identify, process_files, stat_text

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Looks:
    """What each look at the threads of a leader that has ended finds, and how many looks were taken."""

    def __init__(self, root: Path, *, alive: bool = False) -> None:
        self._folder = process_files(root / "proc", stat=stat_text("Z"), cgroup="0::/\n") / "task"
        self._script: list[Sequence[Path]] = []
        self.alive = alive
        self.taken = 0

    def then(self, count: int, cgroup: str = "0::/\n", state: str = "S") -> Self:
        threads = [self._folder / f"{len(self._script)}-{number}" for number in range(count)]
        for each in threads:
            each.mkdir(parents=True)
            (each / "stat").write_text(stat_text(state))
            (each / "cgroup").write_text(cgroup)
        self._script.append(threads)
        return self

    def names(self, _folder: str) -> list[str]:
        self.taken += 1
        return [each.name for each in self._script[self.taken - 1]] if self.taken <= len(self._script) else []

    def lives(self, _pid: int) -> bool:
        return self.alive

    def identify(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> Identity | None:
        monkeypatch.setattr("enforcer.attribution.procfs._names", self.names)
        monkeypatch.setattr("enforcer.attribution.procfs.is_alive", self.lives)
        return identify(root)


def test_of_a_leader_that_has_ended_the_thread_that_lives_says_whose_it_is(tmp_path: Path) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("Z"), cgroup="0::/\n")
    (folder / "task" / "76").mkdir(parents=True)  # ended while we look: it has no files any more
    for number, state, cgroup in ((77, "Z", "0::/\n"), (78, "S", GROUP), (79, "Z", "0::/\n")):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(stat_text(state, start=number))
        (task / "cgroup").write_text(cgroup)
    assert identify(tmp_path) == Identity(pid=77, start=4711, owner=OURS)


def test_in_cgroup_v2_a_leader_that_has_ended_still_says_whose_it_is_while_a_thread_is_left(tmp_path: Path) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("Z"))
    (folder / "task" / "77").mkdir(parents=True)
    assert identify(tmp_path) is None
    (folder / "task" / "78").mkdir()  # there, and gone before it could be looked at
    assert identify(tmp_path) == Identity(pid=77, start=4711, owner=OURS)


EXITING = PLAIN | 0x4
"""Flags of one that has begun to end: cgroup v1 says "/" of it, whatever its state."""


@pytest.mark.parametrize("last", [GROUP, "0::/\n"])
def test_a_thread_that_ends_says_nothing_and_one_that_lives_what_is(tmp_path: Path, last: str) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("R", flags=EXITING), cgroup="1:memory:/\n0::/\n")
    for number, cgroup in ((78, "1:memory:/\n"), (79, last)):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(stat_text("R", start=number, flags=EXITING if number == 78 else PLAIN))
        (task / "cgroup").write_text(cgroup)
    seen = identify(tmp_path)
    assert seen is not None
    assert seen.owner == (OURS if last == GROUP else None)


def test_a_leader_that_ends_is_not_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("D", flags=EXITING), cgroup="1:memory:/\n0::/\n")
    monkeypatch.setattr("enforcer.attribution.procfs.is_alive", lambda _: True)
    assert identify(tmp_path) is None
    (folder / "cgroup").write_text(GROUP)
    assert identify(tmp_path) == Identity(pid=77, start=4711, owner=OURS), "in cgroup v2 it says what it did"


@pytest.mark.parametrize("seed", range(5))
def test_of_any_number_of_threads_that_have_ended_the_one_that_lives_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random.seed(seed)
    monkeypatch.setattr(procfs, "THREAD_SECONDS", 60.0)
    folder = process_files(tmp_path / "proc", stat=stat_text("Z"), cgroup="1:memory:/\n0::/\n")
    for number in range(100, 400):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(stat_text("S" if number == 399 else "Z"))
        (task / "cgroup").write_text(GROUP if number == 399 else "0::/\n")
    assert identify(tmp_path) == Identity(pid=77, start=4711, owner=OURS)


def test_where_the_time_for_threads_is_too_short_some_next_look_finds_the_one_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("Z"), cgroup="0::/\n")
    for number in range(100, 110):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(stat_text("S" if number == 109 else "Z"))
        (task / "cgroup").write_text(GROUP)
    monkeypatch.setattr(procfs, "THREAD_SECONDS", 0.0)
    looks = [identify(tmp_path) for _ in range(200)]
    assert None in looks
    assert Identity(pid=77, start=4711, owner=OURS) in looks


def test_threads_that_are_as_dead_as_their_leader_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _Looks(tmp_path).then(1, GROUP, state="Z").identify(tmp_path, monkeypatch) is None


@pytest.mark.parametrize(("threads", "alive"), [(1, False), (0, True)], ids=["a thread is left", "it lives"])
def test_threads_are_looked_for_again_while_the_process_may_have_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, *, alive: bool
) -> None:
    looks = _Looks(tmp_path, alive=alive).then(threads, state="Z").then(1, GROUP)
    assert looks.identify(tmp_path, monkeypatch) == Identity(pid=77, start=4711, owner=OURS)
    assert looks.taken == 2
