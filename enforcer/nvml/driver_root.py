"""Finds the NVIDIA driver the node has below ``--driver-root``: its library and its programs, never those of an image.

``/`` means what this machine's loader and PATH find by themselves. Anywhere else is another file system's root
(``/run/nvidia/driver`` of the GPU Operator, ``/home/kubernetes/bin/nvidia``, or the host's own root mounted somewhere),
so links in it are followed as they were meant there: a link to ``/etc/alternatives`` points into that root.
"""

import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from gpushare.errors import MpsError, NvmlError

HERE: Final = Path("/")
LIBRARY: Final = "libnvidia-ml.so.1"
PROGRAM: Final = "nvidia-cuda-mps-control"
LIBRARY_FOLDERS: Final = (
    "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib64", "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu", "lib", "usr/local/nvidia/lib64",
)  # fmt: skip
PROGRAM_FOLDERS: Final = ("usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "usr/local/nvidia/bin")
NVIDIA_ONLY: Final = ("libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*")
"""Libraries MPS is given. Not the whole folder: beside them may lie a C library of another age than our loader's."""
MAX_LINKS: Final = 40
"""As the kernel has it."""
VALUE: Final = "--driver-root (chart value driverRoot)"


class DriverRoot:
    """The node's driver; it is looked for when it is needed, because it may come after us.

    Args:
        root: where its file system begins.
    """

    def __init__(self, root: Path = HERE) -> None:
        self.root = root

    def load(self) -> None:
        """Load NVML's library, so that nvidia-ml-py finds this one under its name.

        Raises:
            NvmlError: it is not there, or cannot be loaded.
        """
        if self.root == HERE:
            return
        library = self._find(LIBRARY_FOLDERS, LIBRARY)
        if library is None:
            raise NvmlError(self._missing(LIBRARY, LIBRARY_FOLDERS))
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            raise NvmlError(f"the enforcer cannot load {library}: {error}; check {VALUE}, now {self.root}") from error

    def program(self) -> Path:
        """Find the MPS control program. Raises ``MpsError``."""
        if self.root == HERE:
            return Path(PROGRAM)
        found = self._find(PROGRAM_FOLDERS, PROGRAM)
        if found is None:
            raise MpsError(self._missing(PROGRAM, PROGRAM_FOLDERS))
        return found

    def environment(self, run: Path) -> dict[str, str]:
        """Give MPS's programs their environment: our own, the driver's libraries, and its server beside its control.

        Args:
            run: directory in which a folder of links to those libraries is kept.

        Raises:
            MpsError: the program is missing, or the folder cannot be written.
        """
        if self.root == HERE:
            return dict(os.environ)
        folder = run / "driver"
        try:
            _link_all(folder, dict(self._libraries()))
        except OSError as error:
            raise MpsError(f"the enforcer cannot link the driver's libraries in {folder}: {error}") from error
        path = f"{os.environ.get('PATH', os.defpath)}:{self.program().parent}"
        return {**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(folder)}

    def _libraries(self) -> Iterator[tuple[str, Path]]:
        """Names and files of NVIDIA's libraries, of the first folder that has NVML's."""
        for folder in LIBRARY_FOLDERS:
            if inside(self.root, f"{folder}/{LIBRARY}") is None:
                continue
            place = inside(self.root, folder) or self.root
            for name in sorted({found.name for pattern in NVIDIA_ONLY for found in place.glob(pattern)}):
                if (file := inside(self.root, f"{folder}/{name}")) is not None:
                    yield name, file
            return

    def _find(self, folders: tuple[str, ...], name: str) -> Path | None:
        candidates = (inside(self.root, f"{folder}/{name}") for folder in folders)
        return next((found for found in candidates if found is not None), None)

    def _missing(self, name: str, folders: tuple[str, ...]) -> str:
        looked = ", ".join(folders)
        return (
            f"no {name} below {self.root} (looked in {looked}); write the root of the node's NVIDIA driver in {VALUE}"
        )


def inside(root: Path, path: str) -> Path | None:
    """Resolve a path as a process would whose root directory is ``root``; ``None`` where nothing is."""
    at, left, links = root, list(reversed(PurePosixPath(path).parts)), 0
    while left:
        part = left.pop()
        if part == "/":
            at = root
        elif part == "..":
            at = at if at == root else at.parent
        elif (target := _target(at / part)) is None:
            at /= part
        else:
            links += 1
            if links > MAX_LINKS:
                return None
            left += reversed(PurePosixPath(target).parts)
    return at if at.exists() else None


def _target(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:  # no link, or nothing at all
        return None


def _link_all(folder: Path, files: Mapping[str, Path]) -> None:
    """Make the folder hold exactly these links; each appears whole, for a daemon may start at any moment."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, file in files.items():
        if _target(folder / name) != str(file):
            temporary = folder / f".{name}.new"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(file)
            temporary.rename(folder / name)
    for stray in (found for found in folder.iterdir() if found.name not in files):
        stray.unlink()
