"""containerd's folder with our images in it, made here at this machine's speed: the guest then starts with them."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.testbed.cluster import archive, images, node_files, packages
from tests.testbed.cluster.binaries import Group, cache_root, find_all
from tests.testbed.cluster.build import lock, say
from tests.testbed.cluster.errors import BedError

START_SECONDS: Final = 30.0
KEPT: Final = 2
CONFIG: Final = """\
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]

[plugins.'io.containerd.internal.v1.opt']
path = "{state}/opt"
"""
Say = Callable[[str], None]


def folder(say: Say = say) -> Path:
    """Containerd's root folder with the product's images, the pause image and busybox, unpacked.

    Raises:
        BedError: containerd did not start, or refused an image.
    """
    made = files()
    home = cache_root() / f"vm-store-{_digest(made)}"
    with lock("vm-store", say):
        if not home.is_dir():
            say("unpacking the images for the virtual node ...")
            with tempfile.TemporaryDirectory(dir=cache_root()) as scratch:
                top = Path(scratch)
                byhand = archive.busybox(
                    top / "busybox.tar",
                    packages.busybox(),
                    {node_files.PAUSE_IMAGE: archive.FOREVER, archive.BUSYBOX_IMAGE: ()},
                )
                _import(top, [byhand, *made])
                (top / "root").rename(home)
            _forget_old()
        os.utime(home)
    return home


def files() -> list[Path]:
    """The product's images, also those that a test upgrades to."""
    return [images.image(target, tag) for tag in ("", images.UPGRADED) for target in images.targets()]


def _import(top: Path, files: Sequence[Path]) -> None:
    binaries = find_all(Group.NODE)
    with _containerd(top, binaries) as socket:
        for file in files:
            command = [str(binaries["ctr"]), f"--address={socket}", "--namespace=k8s.io", "images", "import", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise BedError(f"containerd refused {file.name}: {done.stderr[-2000:]}")


@contextmanager
def _containerd(top: Path, binaries: dict[str, Path]) -> Iterator[Path]:
    """A containerd of its own, in a mount namespace that ends with it."""
    state = top / "state"
    state.mkdir()
    config, socket, log = top / "config.toml", state / "containerd.sock", top / "log"
    config.write_text(CONFIG.format(root=top / "root", state=state))
    command = [str(binaries["containerd"]), f"--config={config}", f"--address={socket}"]
    with log.open("w") as file:
        process = subprocess.Popen(
            ["unshare", "--mount", "--propagation=private", *command], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BedError(f"containerd did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield socket
    finally:
        process.terminate()
        process.wait(20)


def _digest(files: Sequence[Path]) -> str:
    made = [str(find_all(Group.NODE)["containerd"]), *(file.name for file in files), CONFIG]
    return hashlib.sha256("\0".join(made).encode()).hexdigest()[:12]


def _forget_old() -> None:
    for old in sorted(cache_root().glob("vm-store-*"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
