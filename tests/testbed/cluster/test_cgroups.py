"""Which control groups a machine has, and that a group is ended whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.need import missing
from tests.testbed.cluster import cgroups
from tests.testbed.cluster.cgroups import Hierarchy
from tests.testbed.cluster.errors import BedError

TOP = Path("/sys/fs/cgroup")
V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "28 23 0:25 / /sys/fs/cgroup ro shared:8 - tmpfs tmpfs ro,mode=755\n"
    "31 28 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
    "32 28 0:29 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"
    "33 28 0:30 / /sys/fs/cgroup/systemd rw shared:12 - cgroup cgroup rw,xattr,name=systemd\n"
)
HYBRID = V1 + "34 28 0:31 / /sys/fs/cgroup/unified rw shared:13 - cgroup2 cgroup2 rw\n"


@pytest.fixture(autouse=True)
def _controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_controllers", lambda: {"cpu", "cpuacct", "memory"})


def test_version_2_is_one_hierarchy() -> None:
    assert cgroups.hierarchies(V2) == [Hierarchy(TOP, "")]


def test_version_1_is_one_for_each_set_of_controllers() -> None:
    v1 = [
        Hierarchy(TOP / "cpu,cpuacct", "cpu,cpuacct"),
        Hierarchy(TOP / "memory", "memory"),
        Hierarchy(TOP / "systemd", "none,name=systemd"),
    ]
    assert cgroups.hierarchies(V1) == v1
    assert cgroups.hierarchies(HYBRID) == [*v1, Hierarchy(TOP / "unified", "")]


def test_a_machine_without_any_gets_an_error() -> None:
    with pytest.raises(BedError, match="no cgroup hierarchy"):
        cgroups.hierarchies("28 23 0:25 / /tmp rw - tmpfs tmpfs rw\n")


def test_a_node_mounts_what_the_machine_has() -> None:
    assert cgroups.mount_commands(cgroups.hierarchies(V2)) == [
        "mkdir -p /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    ]
    lines = cgroups.mount_commands(cgroups.hierarchies(HYBRID))
    assert lines[0] == "mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup"
    assert lines[3].endswith("mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd")
    assert lines[4].endswith("mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")


@pytest.mark.node
def test_a_group_is_ended_with_all_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if os.geteuid() != 0:
        missing("control groups need root")
    try:
        mounted, name = cgroups.hierarchies(), f"gpu-share-bed-test-{os.getpid()}"
        cgroups.create(name, mounted)
    except BedError as error:
        missing(str(error))
    below = mounted[-1].where / name / cgroups.LEAF / "below"
    below.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        (below / cgroups.PROCS).write_text(str(process.pid))
        assert cgroups.pids(name, mounted) == {process.pid}
        cgroups.end(name, mounted)
        assert process.wait(10) == -9
    assert not [each for each in mounted if (each.where / name).exists()]
