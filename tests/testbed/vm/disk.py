"""Disks of a virtual node: the root disk that all share read-only, an overlay and a state disk for each."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.testbed.cluster import packages
from tests.testbed.cluster.binaries import cache_root
from tests.testbed.cluster.build import lock, say
from tests.testbed.cluster.errors import BedError
from tests.testbed.vm import rootfs, store

SIZE: Final = "6G"
STATE_SIZE: Final = 512 * 2**20
KEPT: Final = 2
Say = Callable[[str], None]


def base(say: Say = say) -> Path:
    """Raw ext4 image with the guest's files and our images, in the cache. Nobody may write to it.

    Raises:
        BedError: it cannot be made.
    """
    tree, images = rootfs.tree(say), store.folder(say)
    name = hashlib.sha256(f"{tree.name} {images.name} {SIZE}".encode()).hexdigest()[:12]
    file = cache_root() / f"vm-disk-{name}.img"
    with lock("vm-disk", say):
        if not file.is_file():
            with tempfile.TemporaryDirectory(dir=cache_root()) as folder:
                _lay_out(Path(folder), tree / "root", images, file)
            for old in sorted(cache_root().glob("vm-disk-*.img"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
                old.unlink()
        os.utime(file)
    return file


def _lay_out(top: Path, root: Path, images: Path, file: Path) -> None:
    """Put both trees together by hard links: an overlay would hide the images' own whiteouts."""
    joined = top / "root"
    run("cp", "--archive", "--link", str(root), str(joined))
    run("cp", "--archive", "--link", str(images), str(joined / "var/lib/containerd"))
    fresh = top / "disk.img"
    run("mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1", "-d", str(joined), str(fresh), SIZE)
    fresh.rename(file)
    shutil.rmtree(joined)


def overlay(target: Path) -> Path:
    """A qcow2 disk for one guest over :func:`base`."""
    tool("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base()), str(target))
    return target


def state(target: Path, kind: str = "ext4", size: int = STATE_SIZE) -> Path:
    """A qcow2 disk for what has to survive power cuts (``guest.STATE``), with an ``ext4`` or ``xfs`` file system."""
    raw = target.with_suffix(".raw")
    with raw.open("wb") as file:
        file.truncate(size)
    if kind == "ext4":
        run("mke2fs", "-q", "-t", "ext4", str(raw))
    else:
        tool("mkfs.xfs", "-q", str(raw))
    tool("qemu-img", "convert", "-q", "-O", "qcow2", str(raw), str(target))
    raw.unlink()
    return target


def with_tools(*command: str) -> list[str]:
    """Command line that runs ``command`` with QEMU's and other packages' programs, in a mount namespace of its own."""
    script = f'{packages.over_usr(packages.tree(rootfs.HOST_PACKAGES))} && exec "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *command]


def tool(*command: str) -> str:
    """Run such a program to its end and return what it printed."""
    return run(*with_tools(*command))


def run(*command: str) -> str:
    """Run a program to its end and return what it printed. Raises BedError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command)[-200:]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
