"""Reads files as the kernel writes them; ``tests/integration/processes/test_processes.py`` reads real processes."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from enforcer.attribution import procfs as proc
from enforcer.attribution.cgroup import SHORT, ContainerRef, Identity
from enforcer.attribution.procfs import (
    INITIAL_PID_NAMESPACE,
    CgroupAttributor,
    PidHandle,
    Stat,
    in_initial_pid_namespace,
    is_alive,
    leads_namespace,
    namespace_pids,
    read_stat,
)

POD = "0a1b2c3d-1111-2222-3333-444455556666"
CONTAINER = "c" * 64
OWN_GROUP = f"kubepods/pod{POD}/{CONTAINER}"
GROUP = f"0::/{OWN_GROUP}\n"
KTHREAD, PLAIN = 0x00208040, 0x00400100
OURS = ContainerRef(POD, CONTAINER)


def stat_text(state: str = "S", start: int = 4711, flags: int = PLAIN, name: str = "python") -> str:
    """Field n of proc(5) reads n00 where nobody asks for it, so that no other can be taken for it."""
    between = [str(n * 100) for n in range(10, 22)]
    return f"77 ({name}) {state} 400 500 600 700 800 {flags} {' '.join(between)} {start} 2300 2400\n"


def process_files(
    proc: Path, pid: int = 77, stat: str | None = None, cgroup: str | None = GROUP, status: str = ""
) -> Path:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(stat_text() if stat is None else stat)
    (folder / "status").write_text(status)
    if cgroup is not None:
        (folder / "cgroup").write_text(cgroup)
    return folder


def identify(root: Path, pid: int = 77) -> Identity | None:
    return CgroupAttributor(root / "proc", root / "cgroup").identify(pid)


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """What one test's texts mean is worked out by each that has them."""
    proc._known_folders.cache_clear()


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_a_process_is_known_by_its_start_its_owner_and_its_containers_cgroup(tmp_path: Path) -> None:
    process_files(tmp_path / "proc")
    group = tmp_path / "cgroup" / OWN_GROUP
    group.mkdir(parents=True)
    assert identify(tmp_path) == Identity(pid=77, start=4711, owner=OURS, cgroup_inode=group.stat().st_ino)


def test_its_inode_is_that_of_the_containers_cgroup_and_not_of_one_below(tmp_path: Path) -> None:
    process_files(tmp_path / "proc", cgroup=f"0::/{OWN_GROUP}/below\n")
    below = tmp_path / "cgroup" / OWN_GROUP / "below"
    below.mkdir(parents=True)
    seen = identify(tmp_path)
    assert seen is not None
    assert seen.cgroup_inode == below.parent.stat().st_ino


@pytest.mark.parametrize(
    ("line", "mounted"),
    [
        (f"4:memory:/{OWN_GROUP}", "memory"),
        (f"1:name=systemd:/{OWN_GROUP}", "systemd"),
        (GROUP, "unified"),
        (GROUP, ""),
    ],
    ids=["v1", "named", "hybrid", "v2"],
)
def test_the_cgroup_is_found_wherever_its_hierarchy_is_mounted(tmp_path: Path, line: str, mounted: str) -> None:
    process_files(tmp_path / "proc", cgroup=line)
    group = tmp_path / "cgroup" / mounted / OWN_GROUP
    group.mkdir(parents=True)
    seen = identify(tmp_path)
    assert seen is not None
    assert (seen.owner, seen.cgroup_inode) == (OURS, group.stat().st_ino)


def test_a_hierarchy_that_is_not_mounted_is_passed_over_for_the_next(tmp_path: Path) -> None:
    process_files(tmp_path / "proc", cgroup=f"5:cpuset:/{OWN_GROUP}\n4:memory:/{OWN_GROUP}\n")
    group = tmp_path / "cgroup" / "memory" / OWN_GROUP
    group.mkdir(parents=True)
    seen = identify(tmp_path)
    assert seen is not None
    assert seen.cgroup_inode == group.stat().st_ino


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8192, 10_000])
def test_files_of_any_length_are_read_to_their_end(tmp_path: Path, size: int) -> None:
    text = f"0::/{OWN_GROUP}/"
    text += "a" * (size - len(text) - 1) + "\n"
    group = tmp_path / "cgroup" / OWN_GROUP
    group.mkdir(parents=True)
    for pid, cgroup in ((77, text), (78, f"{text[:-1]}\n1:name=systemd:/kubepods/pod{POD}/{'d' * 64}\n")):
        process_files(tmp_path / "proc", pid, cgroup=cgroup)
    one, torn = identify(tmp_path), identify(tmp_path, 78)
    assert one is not None
    assert torn is not None
    assert (one.owner, one.cgroup_inode) == (OURS, group.stat().st_ino)
    assert torn.owner is None, "the last line names another container"


def test_where_cgroups_of_long_texts_are_is_not_remembered(tmp_path: Path) -> None:
    known = proc._known_folders
    for pid, size, kept in ((77, SHORT, 1), (78, SHORT + 1, 0)):
        known.cache_clear()
        process_files(tmp_path / "proc", pid, cgroup=f"0::/{OWN_GROUP}/".ljust(size, "a"))
        assert identify(tmp_path, pid) == identify(tmp_path, pid)
        assert known.cache_info().currsize == kept


@pytest.mark.parametrize("cgroup", [GROUP, f"0::/{OWN_GROUP}/\0\n"], ids=["absent", "no-path"])
def test_where_no_cgroup_can_be_seen_the_owner_still_is(tmp_path: Path, cgroup: str) -> None:
    process_files(tmp_path / "proc", cgroup=cgroup)
    seen = identify(tmp_path)
    assert seen is not None
    assert (seen.owner, seen.cgroup_inode) == (OURS, None)


@pytest.mark.parametrize("flags", [0x00200000, KTHREAD])
def test_a_kernel_thread_is_reported_by_its_flag(tmp_path: Path, flags: int) -> None:
    process_files(tmp_path / "proc", stat=stat_text(flags=flags), cgroup="0::/\n")
    assert identify(tmp_path) == Identity(pid=77, start=4711, owner=None, kernel_thread=True)


def test_nobody_is_seen_where_there_is_no_process_or_it_ends_while_we_look(tmp_path: Path) -> None:
    assert identify(tmp_path) is None
    process_files(tmp_path / "proc", cgroup=None)
    assert identify(tmp_path) is None


@pytest.mark.parametrize("state", ["Z", "X", "x"])
def test_a_corpse_is_nobody(tmp_path: Path, state: str) -> None:
    folder = process_files(tmp_path / "proc", stat=stat_text(state))
    assert identify(tmp_path) is None
    task = folder / "task" / "77"
    task.mkdir(parents=True)
    (task / "stat").write_text(stat_text(state))
    (task / "cgroup").write_text(GROUP)
    assert identify(tmp_path) is None, "its only thread is as dead"


def test_bytes_that_are_no_text_make_a_process_nobodys_and_raise_nothing(tmp_path: Path) -> None:
    (process_files(tmp_path / "proc") / "cgroup").write_bytes(b"0::/kubepods/\xff\n")
    seen = identify(tmp_path)
    assert seen is not None
    assert seen.owner is None


def test_fields_are_counted_from_the_last_parenthesis(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text(stat_text("D", start=99, flags=KTHREAD, name="a) Z 1 (\n) R 2 3"))
    assert read_stat(file) == Stat("D", 99, kernel_thread=True)
    file.write_text(stat_text("R", start=100))
    assert read_stat(file) == Stat("R", 100, kernel_thread=False)


@pytest.mark.parametrize(
    "text", ["", "77 (a) S 1 2", stat_text().replace("4711", "x"), stat_text().replace(str(PLAIN), "y")]
)
def test_a_stat_file_that_is_none_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    assert read_stat(tmp_path / "stat") is None


def test_its_pids_are_those_of_its_namespaces_from_ours_to_its_own(tmp_path: Path) -> None:
    process_files(tmp_path, status="Name:\tNSpid: 5\nPid:\t77\nNSpid:\t77\t12\t1\nNSpgid:\t77\n")
    assert namespace_pids(77, tmp_path) == (77, 12, 1)
    assert leads_namespace(77, tmp_path)
    assert namespace_pids(78, tmp_path) == ()
    assert not leads_namespace(78, tmp_path)


@pytest.mark.parametrize(("own", "leads"), [("77 1", True), ("77 2", False), ("1 77", False), ("77 11", False)])
def test_the_first_of_a_namespace_is_number_one_in_its_own(tmp_path: Path, own: str, *, leads: bool) -> None:
    process_files(tmp_path, status=f"NSpid:\t{own}\n")
    assert leads_namespace(77, tmp_path) is leads


@pytest.mark.parametrize(
    ("own", "caught", "deaf"),
    [
        ("77 1", 0, True),
        ("77 1", 1 << (signal.SIGTERM - 1), False),
        ("77 1", 1 << signal.SIGTERM, True),
        ("77 1", 1 << (signal.SIGTERM - 2), True),
        ("77 2", 0, False),
        ("77 2", 1 << (signal.SIGTERM - 1), False),
    ],
)
def test_only_the_first_of_a_namespace_is_deaf_and_only_without_a_handler(
    tmp_path: Path, own: str, caught: int, *, deaf: bool
) -> None:
    process_files(tmp_path, status=f"NSpid:\t{own}\nSigCgt:\t{caught:016x}\n")
    assert PidHandle(77, -1).ignores(signal.SIGTERM, tmp_path) is deaf


def test_of_all_handlers_only_that_of_the_signal_counts(tmp_path: Path) -> None:
    for number in range(64):
        process_files(tmp_path, number, status=f"NSpid:\t77\t1\nSigCgt:\t{1 << number:016x}\n")
        deaf = PidHandle(number, -1).ignores(signal.SIGTERM, tmp_path)
        assert deaf is (number != signal.SIGTERM - 1), number


def test_a_first_process_whose_handlers_are_not_reported_counts_as_deaf(tmp_path: Path) -> None:
    process_files(tmp_path, status="NSpid:\t77\t1\n")
    assert PidHandle(77, -1).ignores(signal.SIGTERM, tmp_path) is True


def test_by_default_it_is_the_real_proc_that_is_read() -> None:
    me = os.getpid()
    assert namespace_pids(me)[0] == me
    assert leads_namespace(me) is (namespace_pids(me)[-1] == 1)
    seen = CgroupAttributor().identify(me)
    assert seen is not None
    assert not PidHandle(me, -1).ignores(signal.SIGTERM) or leads_namespace(me)
    assert in_initial_pid_namespace() is (Path("/proc/self/ns/pid").stat().st_ino == INITIAL_PID_NAMESPACE)


def test_a_pid_namespace_with_another_inode_is_not_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "self/ns/pid"
    file.parent.mkdir(parents=True)
    file.touch()
    assert in_initial_pid_namespace(tmp_path) is False
    monkeypatch.setattr("enforcer.attribution.procfs.INITIAL_PID_NAMESPACE", file.stat().st_ino)
    assert in_initial_pid_namespace(tmp_path) is True


def test_a_handle_signals_waits_and_says_when_its_process_has_ended(sleeper: int) -> None:
    handle = PidHandle.open(sleeper)
    assert handle is not None
    with handle:
        assert (handle.pid, handle.ended(), is_alive(sleeper)) == (sleeper, False, True)
        assert str(Path(f"/proc/self/fd/{handle.fileno()}").readlink()) == "anon_inode:[pidfd]"
        assert handle.send(signal.SIGSTOP)
        os.waitid(os.P_PID, sleeper, os.WSTOPPED)
        assert handle.send(signal.SIGKILL)
        assert handle.ended(60.0)
        assert not is_alive(sleeper), "a corpse does not"
        os.waitpid(sleeper, 0)
        assert handle.send(signal.SIGKILL) is False
    assert PidHandle.open(sleeper) is None
    assert not is_alive(sleeper)


def test_waiting_for_one_that_does_not_end_comes_to_an_end(sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    class Poll:
        def register(self, descriptor: int, events: int) -> None:
            asked.append(events)

        def poll(self, milliseconds: float) -> list[int]:
            asked.append(milliseconds)
            return []

    handle = PidHandle.open(sleeper)
    assert handle is not None
    with handle:
        monkeypatch.setattr("enforcer.attribution.procfs.select.poll", Poll)
        assert handle.ended(2.5) is False
        assert handle.ended() is False
    assert asked == [1, 2500.0, 1, 0.0], "the kernel counts in milliseconds"


def test_another_hold_outlives_the_first_and_letting_go_twice_closes_nobody_elses(sleeper: int) -> None:
    handle = PidHandle.open(sleeper)
    assert handle is not None
    with handle, handle.duplicate() as another:
        assert (type(another), another.pid) == (PidHandle, sleeper)
        number = handle.fileno()
        assert another.fileno() != number
        handle.close()
        assert handle.fileno() == -1
        taken = os.open("/dev/null", os.O_RDONLY)
        assert taken == number, "the number is free, and somebody else's now"
        handle.close()
        os.fstat(taken)
        os.close(taken)
        assert another.ended() is False


def test_the_descriptor_nought_is_let_go_of_too(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr("enforcer.attribution.procfs.os.close", closed.append)
    PidHandle(1, 0).close()
    assert closed == [0]


def test_where_the_kernel_cannot_say_a_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("enforcer.attribution.procfs.os.pidfd_open", full)
    assert is_alive(77)


def test_asking_whether_one_lives_keeps_no_descriptor(sleeper: int) -> None:
    before = os.open("/dev/null", os.O_RDONLY)
    os.close(before)
    assert is_alive(sleeper)
    after = os.open("/dev/null", os.O_RDONLY)
    os.close(after)
    assert after == before


def test_whether_a_process_lives_is_told_whatever_proc_shows(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert CgroupAttributor(tmp_path).is_alive(process.pid)
        process.kill()
        process.wait()
        assert not CgroupAttributor(tmp_path).is_alive(process.pid)
