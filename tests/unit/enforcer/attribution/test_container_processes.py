"""Who is in a container, from files as the kernel writes them."""

import os
from pathlib import Path

import pytest

from enforcer.attribution import container_processes
from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import ContainerProcess, HostProcesses, list_processes
from enforcer.attribution.procfs import CgroupAttributor, PidHandle
from tests.unit.enforcer.made import CONTAINER, NEIGHBOUR, POD

OURS, THEIRS = ContainerRef(POD, CONTAINER), ContainerRef(POD, NEIGHBOUR)


class Attributor(CgroupAttributor):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Identity] = {}
        self.asked: list[int] = []

    def identify(self, pid: int) -> Identity | None:
        self.asked.append(pid)
        return self.known.get(pid)


def _process(
    proc: Path,
    who: Attributor,
    pid: int,
    owner: ContainerRef | None = OURS,
    *,
    text: str = CONTAINER,
    numbers: str = "",
) -> Identity:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/kubepods/pod{POD}/{text}\n")
    (folder / "status").write_text(f"NSpid:\t{pid}{numbers}\n")
    who.known[pid] = Identity(pid=pid, start=pid, owner=owner)
    return who.known[pid]


def test_all_processes_of_a_container_are_found_with_their_pids_in_each_namespace(tmp_path: Path) -> None:
    who = Attributor()
    first, second = _process(tmp_path, who, 7, numbers="\t1"), _process(tmp_path, who, 9, numbers="\t12")
    found = list_processes(who, OURS, tmp_path)
    assert sorted(found, key=lambda each: each.identity.pid) == [
        ContainerProcess(first, (7, 1)),
        ContainerProcess(second, (9, 12)),
    ]


def test_only_those_whose_cgroup_mentions_it_are_looked_at_and_only_its_own_are_taken(tmp_path: Path) -> None:
    who = Attributor()
    _process(tmp_path, who, 6, THEIRS, text=NEIGHBOUR)
    _process(tmp_path, who, 7, THEIRS)
    _process(tmp_path, who, 8, None)
    ours = _process(tmp_path, who, 9)
    assert list_processes(who, OURS, tmp_path) == [ContainerProcess(ours, (9,))]
    assert sorted(who.asked) == [7, 8, 9]


@pytest.mark.parametrize(("state", "text", "asked"), [("Z", "/", [9]), ("S", "/", []), ("Z", "/other", [])])
def test_one_whose_leader_has_ended_is_looked_at_though_its_own_cgroup_file_names_nothing(
    tmp_path: Path, state: str, text: str, asked: list[int]
) -> None:
    """So it is in cgroup v1: other threads of it may live on in the container."""
    who = Attributor()
    ours = _process(tmp_path, who, 9, numbers="\t12")
    (tmp_path / "9" / "cgroup").write_text(f"5:memory:{text}\n4:cpu,cpuacct:{text}\n")
    (tmp_path / "9" / "stat").write_text(f"9 (a) b) {state} {' '.join(map(str, range(4, 30)))}\n")
    assert list_processes(who, OURS, tmp_path) == ([ContainerProcess(ours, (9, 12))] if asked else [])
    assert who.asked == asked


@pytest.mark.parametrize("name", ["self", "irq", "7x", "\u0667", "1\u0660"])
def test_what_is_no_process_is_passed_over(tmp_path: Path, name: str) -> None:
    who = Attributor()
    ours = _process(tmp_path, who, 9)
    (tmp_path / name).mkdir()
    (tmp_path / name / "cgroup").write_text(CONTAINER)
    assert list_processes(who, OURS, tmp_path) == [ContainerProcess(ours, (9,))]
    assert who.asked == [9]


def test_those_that_end_while_we_look_are_not_there_and_hide_nobody(tmp_path: Path) -> None:
    who = Attributor()
    for pid in (6, 7, 8):
        _process(tmp_path, who, pid)
    ours = _process(tmp_path, who, 9)
    (tmp_path / "6" / "cgroup").unlink()
    del who.known[7]
    (tmp_path / "8" / "status").unlink()
    assert list_processes(who, OURS, tmp_path) == [ContainerProcess(ours, (9,))]


def test_by_default_it_is_the_real_proc_that_is_looked_at() -> None:
    assert list_processes(Attributor(), ContainerRef(POD, "no such container " * 4)) == []


def test_the_processes_of_this_host_are_those_of_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    me, opened = os.getpid(), list[int]()
    ours = Identity(pid=me, start=1, owner=OURS)

    class Mine(CgroupAttributor):
        def identify(self, pid: int) -> Identity | None:
            return ours if pid == me else None

    class Noted(PidHandle):
        @classmethod
        def open(cls, pid: int) -> "Noted | None":
            opened.append(pid)
            return super().open(pid)

    processes = HostProcesses(Mine(), Noted)
    assert processes.identify(me) is ours
    with processes.pin(me) as handle:  # type: ignore[union-attr]
        assert (handle.pid, type(handle), opened) == (me, Noted, [me])
    monkeypatch.setattr(container_processes, "leads_namespace", lambda pid: pid == me)
    assert (processes.leads_namespace(me), processes.leads_namespace(me + 1)) == (True, False)
    found = [ContainerProcess(ours, (me,))]
    listed = {(id(processes.attributor), OURS): found}
    monkeypatch.setattr(container_processes, "list_processes", lambda who, whose: listed[id(who), whose])
    assert processes.processes_of(OURS) is found
    with HostProcesses(Mine()).pin(me) as handle:  # type: ignore[union-attr]
        assert type(handle) is PidHandle
