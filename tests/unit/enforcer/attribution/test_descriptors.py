"""Who has descriptors that may hold GPU memory: real processes, and devices that any machine has for a GPU's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enforcer.attribution import descriptors
from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.descriptors import ControlDevice, ControlFolder, DescriptorReader, control_files, look
from gpushare.errors import ConfigError
from tests.support.wiring import Attribution

NULL = ControlDevice(1, 3)
"""/dev/null plays nvidiactl, and the other devices of its major number, such as /dev/zero, the GPUs."""
names = descriptors._names
OPENS = "import os, sys, time; kept = [open(each) for each in sys.argv[1:]]; print(flush=True); sys.stdin.read()"


@contextmanager
def process(*files: str) -> Iterator[int]:
    """One that has these files open, and pipes."""
    with subprocess.Popen(
        [sys.executable, "-c", OPENS, *files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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

        def refused(folder: str) -> list[str]:
            if folder.endswith(f"/{pid}/fdinfo"):
                raise PermissionError
            return [str(pid)] if folder == "/proc" else names(folder)

        monkeypatch.setattr(descriptors, "_names", refused)
        assert not reader().read().complete
        nobody = DescriptorReader(Attribution(lambda pid: Identity(pid=pid, start=1, owner=None)), NULL)
        assert nobody.read().complete, "programs of the node are not looked through"


def test_one_with_more_files_than_are_looked_at_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("/dev/null", *["/dev/zero"] * 5) as pid:
        monkeypatch.setattr(descriptors, "_names", lambda folder: [str(pid)] if folder == "/proc" else names(folder))
        assert reader().read().complete
        monkeypatch.setattr(descriptors, "MOST_FILES", 8)
        assert not reader().read().complete


def test_files_of_file_systems_that_may_hang_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    with process("/dev/null") as pid:
        assert count(pid) == 1
        (mount,) = [line for line in Path(f"/proc/{pid}/fdinfo/3").read_text().splitlines() if "mnt_id" in line]
        monkeypatch.setattr(descriptors, "_remote_mounts", lambda _: frozenset({mount.split()[1]}))
        assert count(pid) == 0


def test_mounts_from_elsewhere_are_known_by_their_type(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(
        "36 35 0:40 / /a rw - ext4 /dev/sda rw\n37 35 0:41 / /b rw shared:1 - nfs4 host:/x rw\n"
        "38 1 0:9 / /c rw - fuse.s3 s3 rw\n"
    )
    assert descriptors._remote_mounts(str(file)) == {"37", "38"}
    assert descriptors._remote_mounts(str(tmp_path / "nothing")) == frozenset()


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
