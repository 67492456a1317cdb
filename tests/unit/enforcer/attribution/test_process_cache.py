"""Processes that are kept on to: known for as long as they are as they were, and not a moment longer."""

import errno
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from enforcer.attribution import process_cache
from enforcer.attribution.cgroup import Identity
from enforcer.attribution.process_cache import LINGER, CachedIdentity, CachedProcess, ProcessCache
from enforcer.attribution.procfs import CgroupAttributor
from enforcer.runtime.clock import Clock
from tests.unit.enforcer.attribution.test_procfs import GROUP, OURS, OWN_GROUP, process_files


class Ticking(Clock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Stands for a cgroup's directory."""
    (tmp_path / "group").mkdir()
    return tmp_path / "group"


def _found(pid: int, folder: Path) -> CachedIdentity:
    inode = folder.stat().st_ino
    text = Path(f"/proc/{pid}/cgroup").read_bytes()
    return CachedIdentity(Identity(pid=pid, start=1, owner=None, cgroup_inode=inode), text, str(folder), inode)


def _hold(pid: int) -> CachedProcess:
    hold = CachedProcess.open(pid)
    assert hold is not None
    return hold


def _used(pid: int, folder: Path, clock: Ticking | None = None) -> tuple[ProcessCache, CachedIdentity]:
    """One that is kept on to."""
    kept, found = ProcessCache(clock or Ticking()), _found(pid, folder)
    kept.store(_hold(pid), found)
    assert kept.lookup(pid) is found.identity
    return kept, found


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_one_that_is_as_it_was_is_known_without_being_made_out_again(
    process: subprocess.Popen[bytes], folder: Path
) -> None:
    kept, found = _used(process.pid, folder)
    assert kept.lookup(process.pid) is found.identity
    assert kept.lookup(os.getpid()) is None, "and nobody else is"


def test_one_that_has_ended_is_nobody_also_while_its_corpse_is_there(
    process: subprocess.Popen[bytes], folder: Path
) -> None:
    files = _open_files()
    kept, _ = _used(process.pid, folder)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a corpse from now on
    assert kept.lookup(process.pid) is None
    assert _open_files() == files


def test_one_whose_pidfd_says_that_it_has_ended_is_nobody_whatever_its_cgroup_says(
    process: subprocess.Popen[bytes], folder: Path
) -> None:
    """In cgroup v2 a corpse's says what it did."""
    hold, found = _hold(process.pid), _found(process.pid, folder)
    assert hold.unchanged_since(found)
    hold.end = SimpleNamespace(poll=lambda _: [(hold.pidfd, 1)])  # type: ignore[assignment] # a stand-in
    assert not hold.unchanged_since(found)
    hold.close()


def test_one_that_ended_before_all_was_found_is_not_kept(process: subprocess.Popen[bytes], folder: Path) -> None:
    files = _open_files()
    hold, found, kept = _hold(process.pid), _found(process.pid, folder), ProcessCache(Ticking())
    process.kill()
    process.wait()
    kept.store(hold, found)
    assert _open_files() == files
    assert kept.lookup(process.pid) is None


def test_what_was_found_of_another_process_with_its_pid_is_not_kept(
    process: subprocess.Popen[bytes], folder: Path
) -> None:
    """The hold is on the one that had the pid first; the next has the same cgroup, and may have the same start."""
    first = subprocess.Popen(["sleep", "60"])
    hold = _hold(first.pid)
    first.kill()
    first.wait()
    kept = ProcessCache(Ticking())
    kept.store(hold, _found(process.pid, folder))
    assert kept.lookup(process.pid) is None


def test_a_cgroup_of_another_name_is_another_matter(process: subprocess.Popen[bytes], folder: Path) -> None:
    kept, found, hold = ProcessCache(Ticking()), _found(process.pid, folder), _hold(process.pid)
    kept.store(hold, CachedIdentity(found.identity, found.cgroup_text + b"1:name=x:/y\n", found.folder, found.inode))
    assert kept.lookup(process.pid) is None


V1 = b"2:name=systemd:/a/b\n1:memory:/a/b\n0::/a/b\n"


@pytest.mark.parametrize(
    ("now", "before", "kept"),
    [
        (V1, V1, True),
        (b"2:name=systemd:/\n1:memory:/\n0::/a/b\n", V1, True),
        (b"2:name=systemd:/\n1:memory:/a/c\n0::/a/b\n", V1, False),
        (b"1:memory:/\n0::/a:/b\n", b"1:memory:/a:/b\n0::/a:/b\n", True),
        (b"1:memory:/a:/\n0::/a:/b\n", b"1:memory:/a:/b\n0::/a:/b\n", False),
        (b"2:name=systemd:/\n1:memory:/\n", V1, False),
        (b"0::/\n", b"0::/a/b\n", False),
        (b"", V1, False),
    ],
    ids=[
        "as it was",
        "a leader that ends",
        "moved",
        "a leader of a name with a colon",
        "moved to it",
        "of another machine",
        "moved in cgroup v2",
        "nothing",
    ],
)
def test_a_process_that_begins_to_end_stays_whose_it_was(
    process: subprocess.Popen[bytes], folder: Path, now: bytes, before: bytes, *, kept: bool
) -> None:
    hold, found = _hold(process.pid), _found(process.pid, folder)
    with tempfile.TemporaryFile() as file:
        file.write(now)
        file.flush()
        os.dup2(file.fileno(), hold.cgroup)
        assert hold.unchanged_since(replace(found, cgroup_text=before)) is kept
    hold.close()


def test_a_text_of_more_than_a_page_is_never_as_it_was(
    process: subprocess.Popen[bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _found(process.pid, folder)
    monkeypatch.setattr(process_cache, "PAGE", len(found.cgroup_text) - 1)
    kept = ProcessCache(Ticking())
    kept.store(_hold(process.pid), found)
    assert kept.lookup(process.pid) is None


def test_a_cgroup_made_again_under_its_name_is_another(process: subprocess.Popen[bytes], folder: Path) -> None:
    kept, _ = _used(process.pid, folder)
    folder.rename(folder.with_name("away"))
    assert kept.lookup(process.pid) is None, "it is gone"
    folder.mkdir()
    kept, _ = _used(process.pid, folder)
    folder.rename(folder.with_name("away too"))
    folder.mkdir()
    assert kept.lookup(process.pid) is None, "it is another"


def test_what_cannot_be_found_is_not_kept_on_to(process: subprocess.Popen[bytes]) -> None:
    files = _open_files()
    kept = ProcessCache(Ticking())
    kept.store(_hold(process.pid), None)
    assert kept.lookup(process.pid) is None
    assert _open_files() == files


def test_who_is_not_asked_about_is_let_go_of(process: subprocess.Popen[bytes], folder: Path) -> None:
    clock, files = Ticking(), _open_files()
    kept, found = _used(process.pid, folder, clock)
    clock.now += LINGER - 1
    assert kept.lookup(process.pid) is found.identity
    clock.now += 2
    kept.lookup(1)
    assert kept.lookup(process.pid) is found.identity, "somebody asked meanwhile"
    clock.now += LINGER + 1
    kept.lookup(1)
    assert _open_files() == files


def test_so_many_are_kept_on_to_that_files_are_left_for_everything_else(
    process: subprocess.Popen[bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2 * process_cache.SHARE - 1, 4096))
    kept = ProcessCache(Ticking())
    assert not kept.full
    kept.store(_hold(process.pid), _found(process.pid, folder))
    assert kept.full
    files = _open_files()
    kept.store(_hold(os.getpid()), _found(os.getpid(), folder))
    assert kept.lookup(os.getpid()) is None
    assert _open_files() == files
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not ProcessCache(Ticking()).full


def test_nothing_is_kept_where_the_pid_is_nobodys(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    files = _open_files()
    assert CachedProcess.open(process.pid) is None
    assert _open_files() == files


def test_whether_it_has_ended_is_asked_and_not_waited_for(process: subprocess.Popen[bytes], folder: Path) -> None:
    hold, asked = _hold(process.pid), list[int]()

    def ended(milliseconds: int) -> list[tuple[int, int]]:
        asked.append(milliseconds)
        return []

    hold.end = SimpleNamespace(poll=ended)  # type: ignore[assignment] # a stand-in
    assert hold.unchanged_since(_found(process.pid, folder))
    assert asked == [0]
    hold.close()


def test_where_there_is_no_room_for_its_second_file_the_first_is_let_go_of(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    files = _open_files()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        assert CachedProcess.open(process.pid) is None
    assert _open_files() == files


def test_nobody_is_let_go_of_before_all_its_time_is_over(process: subprocess.Popen[bytes], folder: Path) -> None:
    clock, files = Ticking(), _open_files()
    kept = ProcessCache(clock)
    clock.now += 1
    kept.store(_hold(process.pid), _found(process.pid, folder))
    clock.now += LINGER
    kept.lookup(1)
    assert _open_files() == files + 2, "it is looked through, and this one's time is just over"
    clock.now += LINGER
    kept.lookup(1)
    assert _open_files() == files + 2, "it is not looked through so soon"
    clock.now += 0.25
    kept.lookup(1)
    assert _open_files() == files


@pytest.mark.parametrize("mounted", ["", "unified"])
def test_what_is_found_of_one_in_a_container_is_all_that_tells_later_whether_it_is_as_it_was(
    tmp_path: Path, mounted: str
) -> None:
    process_files(tmp_path / "proc")
    group = tmp_path / "cgroup" / mounted / OWN_GROUP
    who = CgroupAttributor(tmp_path / "proc", tmp_path / "cgroup")
    plain = Identity(pid=77, start=4711, owner=OURS)
    assert who._made_out(77) == (plain, None), "its cgroup cannot be seen"
    group.mkdir(parents=True)
    inode = group.stat().st_ino
    identity = replace(plain, cgroup_inode=inode)
    folder = f"{tmp_path}/cgroup/{mounted}/{OWN_GROUP}"
    assert who._made_out(77) == (identity, CachedIdentity(identity, GROUP.encode(), folder, inode))
    assert who._made_out(78) == (None, None)


class _Looks:
    """Stands in for making a process out, and counts how often that is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, identity: Identity, found: CachedIdentity | None) -> None:
        self.taken = 0
        self._answer = identity, found
        monkeypatch.setattr(CgroupAttributor, "_made_out", lambda _, pid: self._look(pid))

    def _look(self, pid: int) -> tuple[Identity, CachedIdentity | None]:
        self.taken += 1
        assert pid == self._answer[0].pid
        return self._answer


def _identified(who: CgroupAttributor, pid: int, times: int = 3) -> list[Identity | None]:
    return [who.identify(pid) for _ in range(times)]


def test_one_in_a_container_is_made_out_before_and_after_it_is_kept_on_to_and_then_known(
    process: subprocess.Popen[bytes], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _found(process.pid, folder)
    looks = _Looks(monkeypatch, found.identity, found)
    assert _identified(CgroupAttributor(), process.pid) == [found.identity] * 3
    assert looks.taken == 2


def test_one_that_cannot_be_kept_on_to_is_made_out_at_each_look(
    process: subprocess.Popen[bytes], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, files = _found(process.pid, folder), _open_files()
    looks = _Looks(monkeypatch, found.identity, None)
    assert _identified(CgroupAttributor(), process.pid) == [found.identity] * 3
    assert looks.taken == 3, "it is in no container"
    looks = _Looks(monkeypatch, found.identity, found)
    assert _identified(CgroupAttributor(tmp_path), process.pid) == [found.identity] * 3
    assert looks.taken == 3, "its pid is not one that the kernel knows"
    with monkeypatch.context() as patched:
        patched.setattr(ProcessCache, "full", True)
        assert _identified(CgroupAttributor(), process.pid) == [found.identity] * 3
    assert looks.taken == 6, "there is no room"
    with monkeypatch.context() as patched:
        patched.setattr(CachedProcess, "open", lambda _: None)
        assert _identified(CgroupAttributor(), process.pid) == [found.identity] * 3
    assert looks.taken == 9, "it has ended"
    assert _open_files() == files
