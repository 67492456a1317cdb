"""Build the root file system of the virtual node, its kernel and its initramfs into the cache.

A tree is made once for each combination of packages, files and binaries. Nothing is installed on this machine.
"""

import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tests.support import debian
from tests.testbed.cluster import archive, packages
from tests.testbed.cluster.binaries import Group, cache_root, find_all
from tests.testbed.cluster.build import lock, say
from tests.testbed.cluster.errors import BedError
from tests.testbed.vm import guest

HOST_PACKAGES: Final = ("qemu-system-x86", "qemu-utils", "sshfs", "xfsprogs")
KEPT: Final = 2
KEY: Final = "ssh_key"
"""Private key of the root tree's folder: it opens the guest, and only test machines on this one have it."""
RECIPE: Final = 1
"""Raise it when a tree is made otherwise from the same parts."""
KERNEL_FILE, INITRD_FILE = "vmlinuz", "initrd"
Say = Callable[[str], None]


def tree(say: Say = say) -> Path:
    """Folder with ``root`` (the guest's files), ``vmlinuz``, ``initrd`` and the ssh key; a minute or two, once.

    Raises:
        BedError: a package or a binary cannot be had.
    """
    binaries = find_all(Group.NODE)
    home = cache_root() / f"vm-root-{_digest(binaries)}"
    with lock("vm-root", say):
        if not home.is_dir():
            say(f"making the virtual node's root file system ({guest.SUITE}) ...")
            cache_root().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache_root()) as folder:
                _make(Path(folder), binaries, say)
                Path(folder).chmod(0o700)
                Path(folder).rename(home)
                Path(folder).mkdir()
            _forget_old()
        os.utime(home)
    return home


def _make(home: Path, binaries: dict[str, Path], say: Say) -> None:
    root = home / "root"
    _debootstrap(root, say)
    _kernel(home, root)
    _runtime(root)
    for name, content in guest.FILES.items():
        _put(root / name, content)
    for name in guest.BINARIES:
        shutil.copy2(binaries[name], root / "usr/local/bin" / name)
    for folder in guest.FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    _keys(home, root)
    _run(["systemctl", f"--root={root}", "mask", *guest.MASKED])
    _run(["systemctl", f"--root={root}", "enable", *guest.UNITS, "ssh.service"])


def _debootstrap(root: Path, say: Say) -> None:
    uri, _ = debian.mirror()
    tools = packages.tree(packages.IMAGE_PACKAGES, say)
    include = f"--include={','.join(guest.PACKAGES)}"
    command = ["debootstrap", "--variant=minbase", include, guest.SUITE, str(root), uri]
    script = f'{packages.over_usr(tools)} && exec "$@"'
    # A tree that is thrown away when its making fails needs no sync for each file.
    _run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *command],
        env={**os.environ, "DPKG_FORCE": "unsafe-io"},
    )
    for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / folder, ignore_errors=True)


def _kernel(home: Path, root: Path) -> None:
    """The kernel's own package without its dependencies: they would make an initramfs that this one replaces."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        meta, scratch = Path(folder) / "meta", Path(folder) / "kernel"
        meta.mkdir()
        scratch.mkdir()
        try:
            debian.download((guest.KERNEL,), meta, suite=guest.SUITE)
            debian.download((debian.first_dependency(meta, guest.KERNEL),), scratch, suite=guest.SUITE)
            debian.unpack(scratch, scratch / "unpacked")
        except debian.PackagesUnobtainableError as error:
            raise BedError(str(error)) from error
        (modules,) = (scratch / "unpacked/usr/lib/modules").iterdir()
        shutil.copytree(modules, root / "usr/lib/modules" / modules.name, symlinks=True)
        shutil.copy2(next((scratch / "unpacked/boot").glob("vmlinuz-*")), home / KERNEL_FILE)
    _run(["chroot", str(root), "depmod", modules.name])
    _initramfs(home, next((root / "usr/lib/modules").rglob(f"{guest.BOOT_MODULE}.ko.xz")))


def _runtime(root: Path) -> None:
    """Take runc of a newer suite than the rest; it needs nothing that the rest has not."""
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        scratch = Path(folder)
        try:
            debian.download((guest.RUNTIME,), scratch, suite=guest.RUNTIME_SUITE)
            debian.unpack(scratch, scratch / "unpacked")
        except debian.PackagesUnobtainableError as error:
            raise BedError(str(error)) from error
        shutil.copy2(next((scratch / "unpacked").glob("usr/*bin/runc")), root / "usr/sbin/runc")


def _initramfs(home: Path, module: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home) as folder:
        top = Path(folder)
        (top / "bin").mkdir()
        shutil.copy2(packages.busybox(), top / "bin/busybox")
        (top / f"{guest.BOOT_MODULE}.ko").write_bytes(lzma.decompress(module.read_bytes()))
        _put(top / "init", guest.INITRAMFS, mode=0o755)
        for name in ("proc", "sys", "dev", "root"):
            (top / name).mkdir()
        archive.cpio(home / INITRD_FILE, top)


def _keys(home: Path, root: Path) -> None:
    """One key pair for the guest as a server, one for whoever logs in."""
    host = root / "etc/ssh/ssh_host_ed25519_key"
    for old in host.parent.glob("ssh_host_*"):
        old.unlink()
    for file in (host, home / KEY):
        _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f", str(file)])
    _put(root / "root/.ssh/authorized_keys", (home / f"{KEY}.pub").read_text(), mode=0o600)
    (root / "root/.ssh").chmod(0o700)


def _put(file: Path, content: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    file.chmod(0o755 if file.parent.name == "sbin" else mode)


def _digest(binaries: dict[str, Path]) -> str:
    """What a tree is made of. A binary's folder in the cache carries its version and the hash of its sources."""
    parts: Iterable[object] = (
        RECIPE, guest.SUITE, guest.PACKAGES, guest.KERNEL, guest.RUNTIME_SUITE, guest.FILES,
        guest.INITRAMFS, guest.MASKED, guest.FOLDERS,
        [(name, str(binaries[name]), binaries[name].stat().st_size) for name in guest.BINARIES],
    )  # fmt: skip
    return hashlib.sha256(repr(tuple(parts)).encode()).hexdigest()[:12]


def _forget_old() -> None:
    """Keep the tree of another checkout as well: its machines start from it."""
    for old in sorted(cache_root().glob("vm-root-*/"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise BedError(f"{' '.join(command)[:200]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
