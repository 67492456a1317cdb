"""Of a process whose leader has ended, its threads say whose it is."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from enforcer.attribution.cgroup import Identity
from enforcer.attribution.procfs import MOST_THREADS
from tests.unit.enforcer.attribution.test_procfs import GROUP, OURS, identify, process_files, stat_text


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

    def tasks(self, _folder: Path) -> Iterator[Path]:
        self.taken += 1
        yield from self._script[self.taken - 1] if self.taken <= len(self._script) else ()

    def lives(self, _pid: int) -> bool:
        return self.alive

    def identify(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> Identity | None:
        monkeypatch.setattr("enforcer.attribution.procfs._tasks", self.tasks)
        monkeypatch.setattr("enforcer.attribution.procfs.is_alive", self.lives)
        return identify(root)


def test_of_a_leader_that_has_ended_the_first_live_thread_says_whose_it_is(tmp_path: Path) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("Z"), cgroup="0::/\n")
    (folder / "task" / "76").mkdir(parents=True)  # ended while we look: it has no files any more
    for number, state, cgroup in ((77, "Z", "0::/\n"), (78, "S", GROUP), (79, "S", "0::/\n")):
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


@pytest.mark.parametrize("last", [GROUP, "0::/\n"])
def test_a_thread_about_to_end_says_nothing_where_another_one_names_a_container(tmp_path: Path, last: str) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text("Z"), cgroup="1:memory:/\n0::/\n")
    for number, cgroup in ((77, "1:memory:/\n"), (78, "1:memory:/\n"), (79, last)):
        task = folder / "task" / str(number)
        task.mkdir(parents=True)
        (task / "stat").write_text(stat_text("Z" if number == 77 else "R", start=number))
        (task / "cgroup").write_text(cgroup)
    seen = identify(tmp_path)
    assert seen is not None
    assert seen.owner == (OURS if last == GROUP else None)


def test_a_thread_that_is_as_dead_as_its_leader_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _Looks(tmp_path).then(1, GROUP, state="Z").identify(tmp_path, monkeypatch) is None


def test_where_no_thread_is_left_and_the_process_has_ended_what_was_seen_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = _Looks(tmp_path).then(1)
    assert looks.identify(tmp_path, monkeypatch) == Identity(pid=77, start=4711, owner=None)
    assert looks.taken == 2


@pytest.mark.parametrize(("threads", "alive"), [(1, False), (0, True)], ids=["a thread is left", "it lives"])
def test_threads_that_name_nobody_are_looked_for_again_while_the_process_may_have_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, *, alive: bool
) -> None:
    looks = _Looks(tmp_path, alive=alive).then(threads).then(1, GROUP)
    assert looks.identify(tmp_path, monkeypatch) == Identity(pid=77, start=4711, owner=OURS)


def test_one_full_look_at_threads_that_name_nobody_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = _Looks(tmp_path).then(MOST_THREADS).then(1, GROUP)
    assert looks.identify(tmp_path, monkeypatch) == Identity(pid=77, start=4711, owner=OURS)


def test_of_threads_without_number_that_name_nobody_only_so_many_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = _Looks(tmp_path, alive=True).then(MOST_THREADS).then(1).then(1, GROUP)
    assert looks.identify(tmp_path, monkeypatch) == Identity(pid=77, start=4711, owner=None)
    assert looks.taken == 2
