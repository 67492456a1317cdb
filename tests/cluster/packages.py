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

from tests.cluster.binaries import cache_root
from tests.cluster.errors import BedError
from tests.support import debian

NODE_PACKAGES: Final = ("runc", "containernetworking-plugins", "nftables", "busybox-static")
IMAGE_PACKAGES: Final = ("buildah", "debootstrap")
DONE: Final = ".unpacked"


def tree(packages: tuple[str, ...], say: Callable[[str], None] = lambda _: None) -> Path:
    """Folder with the packages and what they need here, fetched on first use.

    Raises:
        BedError: they cannot be fetched.
    """
    home = _home(packages)
    if (home / DONE).is_file():
        return home
    say(f"fetching {', '.join(packages)} ...")
    cache_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_root()) as folder:
        scratch = Path(folder)
        try:
            debian.download(packages, scratch, dependencies=True)
            debian.unpack(scratch, scratch / "unpacked")
        except debian.PackagesUnobtainableError as error:
            raise BedError(f"{error}. Install them, or run this on Debian") from error
        (scratch / "unpacked" / DONE).touch()
        if not home.exists():
            (scratch / "unpacked").rename(home)
    return home


def program(name: str, packages: tuple[str, ...]) -> Path | None:
    """Where a statically linked program is: installed, or in the tree. None when it is not here yet."""
    if found := shutil.which(name):
        return Path(found)
    places = (_home(packages) / folder / name for folder in ("bin", "usr/bin", "usr/sbin", "sbin"))
    return next((place for place in places if place.is_file()), None)


def have(packages: tuple[str, ...]) -> bool:
    """Whether the tree is in the cache."""
    return (_home(packages) / DONE).is_file()


def over_usr(home: Path) -> str:
    """Shell command that lays the machine's ``/usr`` over the tree's, for use in a mount namespace of one's own."""
    return f"mount -t overlay -o ro,lowerdir=/usr:{home}/usr overlay /usr"


def _home(packages: tuple[str, ...]) -> Path:
    digest = hashlib.sha256(" ".join((*packages, _release())).encode()).hexdigest()[:12]
    return cache_root() / f"debian-{packages[0]}-{digest}"


def _release() -> str:
    """Libraries of another release would not fit."""
    try:
        return Path("/etc/os-release").read_text()
    except OSError:
        return ""
