"""Who has descriptors that may hold GPU memory: real processes, and devices that any machine has for a GPU's."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enforcer.attribution import descriptors
from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.descriptors import (
    ControlDevice,
    ControlFolder,
    DescriptorReader,
    OpenFile,
    control_files,
    look,
)  # fmt: skip
from enforcer.attribution.procfs import DEAD, PidHandle, is_alive, read_stat
from enforcer.attribution.unaccounted import UNKNOWN
from gpushare.errors import ConfigError
from tests.support.wiring import Attribution

NULL = ControlDevice(1, 3)
"""/dev/null plays nvidiactl, and the other devices of its major number, such as /dev/zero, the GPUs."""
names = descriptors._names
OPENS = (
    "import os, sys, time; kept = [open(each) for each in sys.argv[1:]]; print(flush=True); {then}; sys.stdin.read()"
)
ENDS_FIRST = (
    "import ctypes, threading; threading.Thread(target=sys.stdin.read).start(); ctypes.CDLL(None).syscall({exit}, 0)"
).format(exit={"x86_64": 60, "aarch64": 93}[platform.machine()])
"""The first thread ends, and the process goes on."""


@contextmanager
def process(*files: str, then: str = "") -> Iterator[int]:
    """One that has these files open, and pipes."""
    with subprocess.Popen(
        [sys.executable, "-c", OPENS.format(then=then or "pass"), *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made.pid
        made.kill()


def reader(files: descriptors.ControlFiles = NULL, pod: str = "pod") -> DescriptorReader:
    def identify(pid: int) -> Identity:
        return Identity(pid=pid, start=1, owner=ContainerRef(pod, "c" * 64))

    return DescriptorReader(Attribution(identify), files)


def count(pid: int, made: DescriptorReader | None = None) -> int:
    found = {each.identity.pid: each.descriptors for each in (made or reader()).read().found}
    return found.get(pid, 0)


@pytest.mark.parametrize(
    ("files", "held"),
    [
        ((), 0),
        (("/dev/zero",), 0),
        (("/dev/null", "/dev/zero", "/dev/zero"), 0),  # a user of CUDA, or of NVML
        (("/dev/null",), 1),  # a process without either that got a copy
        (("/dev/null", "/dev/zero", "/dev/null", "/dev/null", "/dev/null"), 3),
        (("/dev/null", "/dev/null"), 2),
        (("/etc/passwd", "/proc/self/stat"), 0),
    ],
)
def test_each_file_of_the_control_device_beyond_the_first_of_a_user_of_a_gpu_is_one(
    files: tuple[str, ...], held: int
) -> None:
    with process(*files) as pid:
        assert count(pid) == held


@pytest.mark.parametrize(
    "files",
    [
        ["nvidiactl", *["nvidia0"] * 3, *["nvidia-uvm"] * 2],  # nvitop, dcgm-exporter
        ["nvidiactl", *["nvidia0"] * 20, *["nvidia-uvm"] * 2],  # a program with a context
        ["nvidiactl", *["nvidia0"] * 16, *["nvidia-uvm"] * 2],  # a client of MPS
    ],
)
def test_users_of_nvml_and_cuda_have_no_descriptors_as_an_h100_shows_them(files: list[str]) -> None:
    numbers = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (510, 0)}
    opened = [OpenFile(0o20666, 1, numbers[each], (0, 5)) for each in files]

    class Reader(DescriptorReader):
        def _open_files(self, _: PidHandle) -> Iterator[OpenFile]:
            yield from opened

    made = Reader(Attribution(lambda _: None), ControlDevice())
    assert made._holder(os.getpid(), time.monotonic() + 10)[1] == 0
    opened.append(opened[0])
    assert made._holder(os.getpid(), time.monotonic() + 10)[1] == 1, "one that it keeps beside is a descriptor"


def test_a_file_of_a_simulators_folder_is_one_from_wherever_it_is_seen(tmp_path: Path) -> None:
    inside, outside = tmp_path / "nvidiactl" / "7", tmp_path / "7"
    made = reader(ControlFolder(inside.parent))
    with process(str(Path(__file__))) as pid:
        assert count(pid, made) == 0, "there is no such folder yet"
    inside.parent.mkdir()
    inside.touch()
    outside.touch()
    with process(str(inside), str(outside)) as pid:
        assert count(pid, made) == 1


def test_a_process_that_cannot_be_read_leaves_it_unknown_where_it_is_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("/dev/null") as pid:

        def refused(folder: str) -> Iterable[str]:
            if folder.endswith(f"/{pid}/fdinfo"):
                raise PermissionError
            return [str(pid)] if folder == "/proc" else names(folder)

        monkeypatch.setattr(descriptors, "_names", refused)
        assert not reader().read().complete
        nobody = DescriptorReader(Attribution(lambda pid: Identity(pid=pid, start=1, owner=None)), NULL)
        assert nobody.read().complete, "programs of the node are not looked through"


def test_a_look_ends_in_time_and_what_it_did_not_reach_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two processes with 65,000 copies of a file would keep every look from counting."""
    with process("/dev/null", *["/dev/zero"] * 5) as pid:
        monkeypatch.setattr(descriptors, "_names", lambda folder: [str(pid)] if folder == "/proc" else names(folder))
        assert reader().read().complete
        monkeypatch.setattr(descriptors, "LOOK_SECONDS", 0.0)
        assert not reader().read().complete


def test_a_look_that_hangs_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a copy may whose close waits for a tenant's file server."""
    opened = threading.Event()
    monkeypatch.setattr(descriptors, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(descriptors, "_names", lambda _: opened.wait(60) and [])
    made, began = reader(), time.monotonic()
    assert [made.read(), made.read(), made.read()] == [UNKNOWN] * 3
    assert time.monotonic() - began < 5
    opened.set()
    deadline = time.monotonic() + 10
    while made.read() == UNKNOWN and time.monotonic() < deadline:
        time.sleep(0.01)
    assert made.read().complete


def test_files_of_threads_whose_first_one_has_ended_are_unknown() -> None:
    """The kernel shows none then: to a look it would be a process without descriptors."""
    with process("/dev/null", then=ENDS_FIRST) as pid:
        while (found := read_stat(f"/proc/{pid}/stat")) is not None and found.state not in DEAD:
            time.sleep(0.01)
        assert is_alive(pid)
        assert reader()._holder(pid, time.monotonic() + 10)[1] is None


def test_a_pid_that_is_anothers_after_the_look_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may end its holder while it is looked at, and the pid come round to a neighbour's process."""
    with process("/dev/null") as pid:

        def identify(found: int) -> Identity:
            if found == pid:
                os.kill(pid, signal.SIGKILL)
                while is_alive(pid):
                    time.sleep(0.01)
            return Identity(pid=found, start=2, owner=ContainerRef("neighbour", "d" * 64))

        assert count(pid, DescriptorReader(Attribution(identify), NULL)) == 0


def test_files_of_file_systems_that_may_hang_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("/dev/null") as pid:
        assert count(pid) == 1
        (mount,) = [line for line in Path(f"/proc/{pid}/fdinfo/3").read_text().splitlines() if "mnt_id" in line]
        monkeypatch.setattr(descriptors, "_remote_mounts", lambda _: frozenset({mount.split()[1].encode()}))
        assert count(pid) == 0


def test_mounts_from_elsewhere_are_known_by_their_type(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(
        "36 35 0:40 / /a rw - ext4 /dev/sda rw\n37 35 0:41 / /b rw shared:1 - nfs4 host:/x rw\n"
        "38 1 0:9 / /c rw - fuse.s3 s3 rw\n"
    )
    assert descriptors._remote_mounts(str(file)) == {b"37", b"38"}


def test_where_mounts_cannot_be_read_or_are_too_many_no_file_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        descriptors._remote_mounts(str(tmp_path / "nothing"))
    monkeypatch.setattr(descriptors, "MOST_BYTES", 16)
    monkeypatch.setattr(descriptors, "look_at_copy", None)
    with process("/dev/null") as pid:
        assert reader()._holder(pid, time.monotonic() + 10)[1] is None


def test_one_that_ends_meanwhile_has_none() -> None:
    with process("/dev/null") as pid:
        pass
    assert count(pid) == 0


def test_what_statx_says_is_what_stat_says(tmp_path: Path) -> None:
    for path in ("/dev/null", "/dev/zero", str(tmp_path), "/proc/self/fd/0"):
        found, known = look(path), Path(path).stat()
        assert found == (
            known.st_mode, known.st_ino, (os.major(known.st_rdev), os.minor(known.st_rdev)),
            (os.major(known.st_dev), os.minor(known.st_dev)),
        )  # fmt: skip
    with pytest.raises(FileNotFoundError):
        look(str(tmp_path / "nothing"))


def test_the_flag_takes_a_device_number_or_a_simulators_folder() -> None:
    assert control_files("195:255") == ControlDevice()
    assert isinstance(control_files("/var/lib/simulator"), ControlFolder)
    for wrong in ("195", "195:", "a:b", "-1:3", "\u0661:\u0663", "1:2:3", "9" * 30 + ":1"):
        with pytest.raises(ConfigError, match="--control-device"):
            control_files(wrong)
