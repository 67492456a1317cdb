"""The shared memory of MPS as the kernel makes it, in a mount namespace of its own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from enforcer.mps import host as mps_host
from tests.integration.processes.mps.conftest import ROOT, until
from tests.support.need import missing

pytestmark = pytest.mark.node

WITH_MOUNTS = """
import os, sys
from pathlib import Path
from enforcer.mps.shared_memory import mount_shared_memory, unmount_shared_memory

folder, here = Path(sys.argv[1], "shm"), Path(sys.argv[1], "here")
here.mkdir()
size = lambda: os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize >> 20
assert mount_shared_memory(folder, "8m", here)
assert (size(), folder.stat().st_mode & 0o7777) == (8, 0o1777)
assert os.statvfs(folder).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
(here / "segment").write_bytes(b"x" * 4096)
assert (folder / "segment").exists(), "daemons and clients have one"
try:
    (here / "large").write_bytes(b"x" * (9 << 20))
except OSError as error:
    assert error.errno == 28, error
else:
    raise AssertionError("it has no limit")
mounts = Path("/proc/self/mountinfo").read_text().count(sys.argv[1])
assert mount_shared_memory(folder, "16m", here), "after a restart"
assert (size(), (folder / "segment").exists()) == (16, True)
assert Path("/proc/self/mountinfo").read_text().count(sys.argv[1]) == mounts == 2
unmount_shared_memory(folder)
assert not folder.is_mount() and not list(folder.iterdir())
assert (here / "segment").exists(), "who has it keeps it"
unmount_shared_memory(folder)
print("done")
"""
KILLED = """
import atexit, os, subprocess, sys, time
from pathlib import Path

run = Path(sys.argv[1])
folder, door = run / "shm", run / "mps" / "host.sock"
size = lambda: os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize >> 20

def start(propagation, *more):
    door.unlink(missing_ok=True)
    in_its_pod = ["unshare", "--mount", f"--propagation={propagation}"]
    host = [sys.executable, "-m", "enforcer.mps.host", "--run", str(run), *more]
    process = subprocess.Popen([*in_its_pod, *host], stderr=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    end = time.monotonic() + 30
    while not door.exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    return process

def kill(process):
    process.kill()
    process.communicate()
    assert folder.is_mount()

kill(start("unchanged", "--shared-memory", "8Mi"))
(folder / "segment").write_bytes(b"x")
assert size() == 8
again = start("unchanged", "--shared-memory", "16Mi")
assert (size(), (folder / "segment").exists()) == (16, True), "taken over"
assert Path("/proc/self/mountinfo").read_text().count(f" {folder} ") == 1
again.terminate()
assert (again.communicate()[1], again.returncode, folder.is_mount()) == ("", 0, False)
assert folder.stat().st_mode & 0o7777 == 0o755, "nobody gets the directory instead"

kill(start("unchanged", "--shared-memory", "8Mi"))
other = start("unchanged")
assert not folder.is_mount(), "taken away by one that is to have none"
other.terminate()
assert other.communicate()[1] == ""

kill(start("unchanged", "--shared-memory", "8Mi"))
apart = start("private")
apart.terminate()
assert "still mounted on the node" in apart.communicate()[1]
assert folder.is_mount()
print("done")
"""
WITHOUT = """
import sys
from pathlib import Path
from enforcer.mps.shared_memory import mount_shared_memory

folder = Path(sys.argv[1], "shm")
assert not mount_shared_memory(folder, "8m")
assert folder.stat().st_mode & 0o7777 == 0o1777
print("done")
"""


def run(root: Path, script: str, *before: str) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        missing("needs root and unshare")
    command = ["unshare", "--mount", "--propagation=private", *before, sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if "unshare failed" in done.stderr:
        missing(done.stderr.strip())
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_it_is_bounded_shared_taken_up_again_and_taken_away(root: Path) -> None:
    run(root, WITH_MOUNTS)


def test_what_a_killed_host_leaves_mounted_the_next_takes_over_or_away(root: Path) -> None:
    """The node is one mount namespace, each pod another to which it is shared (``Bidirectional``), the last one not."""
    run(root, KILLED, "sh", "-c", 'mount --make-rshared / && exec "$@"', "sh")


def test_without_the_right_to_mount_it_is_a_directory_for_everybody(root: Path) -> None:
    if shutil.which("setpriv") is None:
        missing("needs setpriv")
    run(root, WITHOUT, "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")


def test_the_host_process_has_it_before_it_serves(root: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        missing("needs root and unshare")
    host = [sys.executable, "-m", "enforcer.mps.host", "--run", str(root), "--shared-memory", "8Mi"]
    with subprocess.Popen(["unshare", "--mount", "--propagation=private", *host], cwd=ROOT) as process:
        until(lambda: (root / "mps" / "host.sock").exists() or process.poll() is not None, 30)
        try:
            about = os.statvfs(Path("/proc", str(process.pid), "root", "dev", "shm"))
            assert about.f_blocks * about.f_frsize == 8 << 20
        finally:
            process.terminate()
        assert process.wait(15) == 0
    assert not (root / "shm").is_mount(), "nothing is mounted where we are"


def test_a_size_that_is_none_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        mps_host.main(["--run", str(root), "--shared-memory", "1024"])
    assert ended.value.code == 2
    assert "argument --shared-memory: " in capsys.readouterr().err
    assert not (root / "shm").exists()
