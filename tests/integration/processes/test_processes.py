"""Identities of real processes: pids that come round again, corpses, names made to confuse."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from enforcer.attribution.cgroup import ContainerRef
from enforcer.attribution.procfs import CgroupAttributor, PidHandle, in_initial_pid_namespace, is_alive, read_stat
from tests.integration.processes.containers import PROJECT, Kubelet, wait_for
from tests.support.need import missing

pytestmark = pytest.mark.node

REUSE = """
import os, signal, sys
from enforcer.attribution.procfs import CgroupAttributor, PidHandle

def child(wanted):
    if wanted:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(wanted - 1))
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    return pid

same = bare = 0
for _ in range(int(sys.argv[1])):
    victim = child(0)
    handle, before = PidHandle.open(victim), CgroupAttributor().identify(victim)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    innocent = child(victim)
    assert innocent == victim, "this kernel did not give the pid again"
    same += CgroupAttributor().identify(innocent) == before
    assert handle.ended()
    assert handle.send(signal.SIGKILL) is False
    assert os.waitpid(innocent, os.WNOHANG) == (0, 0), "an innocent was hit"
    os.kill(victim, signal.SIGKILL)
    bare += os.waitpid(innocent, 0)[0] == innocent
    handle.close()
print(same, bare)
"""


def test_a_pid_that_comes_round_again_is_never_signalled_through_the_old_handle() -> None:
    trials = 300
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REUSE, str(trials)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode != 0 and ("unshare" in done.stderr or "Permission denied" in done.stderr):
        missing(f"pids cannot be made to come round here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    same, bare = map(int, done.stdout.split())
    print(f"pid with start time was the same in {same} of {trials} reuses; kill(pid) hit the innocent in {bare}")
    assert bare == trials, "the test bites: a bare pid does hit the innocent"
    assert same, "and pid with start time does not tell them apart"


def test_a_process_in_a_container_is_its_containers_wherever_below_it_moves() -> None:
    attributor = CgroupAttributor()
    with Kubelet().container() as container:
        process = container.spawn("sleep", "60")
        wait_for(lambda: process.pid in container.pids(), 5)
        seen = attributor.identify(process.pid)
        assert seen is not None
        assert seen.owner == ContainerRef(container.pod_uid, container.container_id)
        assert seen.cgroup_inode == container.cgroup.stat().st_ino
        victim = container.cgroup / "kubepods" / f"pod{container.pod_uid[::-1]}" / ("f" * 64)
        victim.mkdir(parents=True)
        (victim / "cgroup.procs").write_text(str(process.pid))
        assert attributor.identify(process.pid) == CgroupAttributor().identify(process.pid) == seen
        process.kill()
        process.wait(5)
        assert attributor.identify(process.pid) is None
        for path in (victim, victim.parent, victim.parent.parent):
            wait_for(partial(_removed, path), 5)


def test_a_process_that_is_lowered_on_to_is_another_containers_as_soon_as_it_is_moved_there() -> None:
    attributor = CgroupAttributor()
    with Kubelet().container() as first, Kubelet().container() as second:
        process = first.spawn("sleep", "60")
        wait_for(lambda: process.pid in first.pids(), 5)
        seen = [attributor.identify(process.pid) for _ in range(2)]
        assert seen[0] is not None
        assert seen[0].owner == ContainerRef(first.pod_uid, first.container_id)
        assert seen[1] is attributor.identify(process.pid), "it is held on to, else this shows nothing"
        (second.cgroup / "cgroup.procs").write_text(str(process.pid))
        moved = attributor.identify(process.pid)
        assert moved is not None
        assert moved.owner == ContainerRef(second.pod_uid, second.container_id)
        assert moved.cgroup_inode == second.cgroup.stat().st_ino


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except OSError:
        return False
    return True


def test_a_process_of_the_host_is_nobodys() -> None:
    seen = CgroupAttributor().identify(os.getpid())
    assert seen is not None
    assert seen.owner is None
    assert not seen.kernel_thread


def test_what_has_ended_or_is_only_a_corpse_is_not_there() -> None:
    process = subprocess.Popen(["sleep", "60"])
    handle = PidHandle.open(process.pid)
    assert handle is not None
    with handle:
        assert not handle.ended()
        assert handle.send(signal.SIGKILL)
        assert handle.ended(5)
        found = read_stat(Path(f"/proc/{process.pid}/stat"))
        assert found is not None
        assert found.state == "Z"
        assert CgroupAttributor().identify(process.pid) is None
        process.wait(5)
        assert handle.send(signal.SIGKILL) is False
    assert PidHandle.open(process.pid) is None
    assert CgroupAttributor().identify(process.pid) is None


def test_a_name_full_of_parentheses_confuses_nobody() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (\\n)', 0, 0, 0); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        found = read_stat(Path(f"/proc/{process.pid}/stat"))
        process.kill()
    assert found is not None
    assert found.state in "RSD"
    assert found.start > 1


def test_kernel_threads_are_known_by_their_flag() -> None:
    found = read_stat(Path("/proc/2/stat"))
    if found is None or Path("/proc/2/comm").read_text() != "kthreadd\n":
        pytest.skip("the kernel's threads cannot be seen from this pid namespace")
    assert found.kernel_thread


def test_the_hosts_pid_namespace_is_notified_from_others(tmp_path: Path) -> None:
    assert isinstance(in_initial_pid_namespace(), bool)
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").touch()
    assert in_initial_pid_namespace(tmp_path) is False


def test_a_process_lives_until_it_has_ended_also_where_only_its_corpse_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_alive(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid)
    assert not is_alive(process.pid)

    def full(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", full)
    assert is_alive(process.pid), "nobody can say otherwise"


RELAY = """
import ctypes, threading

def run():
    threading.Thread(target=run).start()

run()
ctypes.CDLL(None).pthread_exit(None)
"""
"""A process whose first thread has ended and whose others live for a moment each: the next one, and no more."""


def test_a_process_whose_threads_end_as_fast_as_we_look_is_seen_all_the_same() -> None:
    with Kubelet().container() as container:
        process = container.spawn(sys.executable, "-c", RELAY)
        wait_for(lambda: _state(process.pid) == "Z", 30)
        seen = [CgroupAttributor().identify(process.pid) for _ in range(500)]
        assert is_alive(process.pid)
        owners = [None if each is None else each.owner for each in seen]
        assert owners == [ContainerRef(container.pod_uid, container.container_id)] * 500


def _state(pid: int) -> str | None:
    found = read_stat(Path(f"/proc/{pid}/stat"))
    return None if found is None else found.state
