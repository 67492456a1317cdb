"""Programs of Debian packages for a node and for building images, kept in the cache as one tree for each group.

The programs expect their libraries and data under ``/usr``. Instead of rewriting them they are run in a mount namespace
in which the machine's own ``/usr`` lies over the tree's: what is installed comes first, the cache fills the gaps.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support import debian
from tests.testbed.cluster.binaries import cache_root
from tests.testbed.cluster.errors import BedError

NODE_PACKAGES: Final = ("runc", "containernetworking-plugins", "nftables", "busybox-static")
IMAGE_PACKAGES: Final = ("buildah", "debootstrap")
PROVIDED: Final = {
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "nftables": "nft",
    "busybox-static": "busybox",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "chromium-headless-shell": "chromium-headless-shell",
    "qemu-system-x86": "qemu-system-x86_64",
    "qemu-utils": "qemu-img",
    "sshfs": "sshfs",
    "xfsprogs": "mkfs.xfs",
}
"""A program of each package: where all of them are installed nothing is fetched."""
DONE: Final = ".unpacked"
RECIPE: Final = "merged"
"""Change it when a tree is made otherwise from the same packages."""


def tree(packages: tuple[str, ...], say: Callable[[str], None] = lambda _: None) -> Path:
    """Folder with the packages and what they need here, fetched on first use.

    Raises:
        BedError: they cannot be fetched.
    """
    home = _home(packages)
    if (home / DONE).is_file():
        return home
    if all(_installed(PROVIDED[package]) for package in packages):
        (home / "usr").mkdir(parents=True, exist_ok=True)
        return home
    say(f"fetching {', '.join(packages)} ...")
    cache_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_root()) as folder:
        scratch = Path(folder)
        try:
            debian.download(packages, scratch, dependencies=True)
            debian.unpack(scratch, scratch / "unpacked")
            _merge_usr(scratch / "unpacked")
            (scratch / "unpacked" / DONE).touch()
            debian.place(scratch / "unpacked", home)
        except debian.PackagesUnobtainableError as error:
            raise BedError(f"{error}. Install them, or run this on Debian") from error
    return home


def _merge_usr(tree: Path) -> None:
    """Put what packages still ship in ``/bin``, ``/sbin`` and ``/lib`` where those lead today: below ``/usr``."""
    for name in ("bin", "sbin", "lib", "lib64"):
        if (tree / name).is_dir():
            shutil.copytree(tree / name, tree / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(tree / name)


def busybox() -> Path:
    """A statically linked busybox: installed, or of the tree.

    Raises:
        BedError: there is none.
    """
    installed = shutil.which("busybox")
    places = [Path(installed)] if installed else []
    places.append(tree(NODE_PACKAGES) / "usr/bin/busybox")
    if found := [place for place in places if place.is_file() and b"/ld-" not in place.read_bytes()[:4096]]:
        return found[0]
    raise BedError("there is no statically linked busybox: install Debian package busybox-static")


def _installed(program: str) -> bool:
    return Path(program).is_file() if program.startswith("/") else shutil.which(program) is not None


def over_usr(home: Path) -> str:
    """Shell command that lays the machine's ``/usr`` over the tree's, for use in a mount namespace of one's own."""
    return f"mount -t overlay -o ro,lowerdir=/usr:{home}/usr overlay /usr"


def _home(packages: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(" ".join((*packages, _release(), RECIPE)).encode()).hexdigest()[:12]
    return cache_root() / f"debian-{packages[0]}-{digest}"


def _release() -> str:
    """Libraries of another release would not fit."""
    try:
        return Path("/etc/os-release").read_text()
    except OSError:
        return ""
