"""Where certificates are kept: a small set of named files, read whole and replaced whole.

``CertificateStore`` is what rotation uses: a folder here, a Secret in ``certs.kube_store``. A folder switches as
the kubelet switches a mounted Secret: the files lie in a directory of their own, ``..data`` is a link to it, and a new
link is renamed over the old one. A reader that opens two files through the link may still get one of each generation,
so servers check that the pair fits; it never gets half a file.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from gpushare.errors import ConfigError, GpuShareError
from gpushare.files import read_regular_file, sync
from gpushare.reasons import Reason

Files = Mapping[str, bytes]
MAX_FILE: Final = 64 * 1024
DATA: Final = "..data"
LOCK: Final = ".lock"
READ_ATTEMPTS: Final = 100


class ConflictError(GpuShareError):
    """Somebody else wrote in between: read again and decide again."""

    reason = Reason.CONFLICT


class CertificateStore(Protocol):
    """A set of named files with a version."""

    def read(self) -> tuple[dict[str, bytes], str]:
        """Return the files and the version to hand to ``write``; no files at all if nothing is stored."""

    def write(self, files: Files, version: str) -> None:
        """Replace all files at once.

        Raises:
            ConflictError: the stored version is no longer ``version``.
        """

    def __str__(self) -> str: ...


class DirectoryStore:
    """A folder with ``NAME → ..data/NAME`` links. Two writers are kept apart by ``locked``; readers need no lock."""

    def __init__(self, folder: Path, mode: int = 0o755) -> None:
        self._folder, self._mode = folder, mode

    def __str__(self) -> str:
        return str(self._folder)

    def read(self) -> tuple[dict[str, bytes], str]:
        """Read the generation that ``..data`` points to. Files over 64 KiB, and what is not a file, are left out."""
        for _ in range(READ_ATTEMPTS):
            generation = self._generation_now()
            files = _files(self._folder / generation) if generation else {}
            if self._generation_now() == generation:  # else it may have been removed while it was read
                return files, generation
        raise ConflictError(f"another process keeps writing {self._folder}, so no read was consistent")

    def _generation_now(self) -> str:
        try:
            return str((self._folder / DATA).readlink())
        except OSError:
            return ""

    def write(self, files: Files, version: str) -> None:
        """Write a new generation, switch to it, remove the old one. Keys are readable by their owner alone."""
        self._folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
        if self._generation_now() != version:
            raise ConflictError(f"another process wrote {self._folder} since it was read")
        generation = f"..{secrets.token_hex(8)}"
        try:
            self._generation(generation, files)
            self._link(DATA, generation)
        except OSError:
            shutil.rmtree(self._folder / generation, ignore_errors=True)
            raise
        for name in files:
            self._link(name, f"{DATA}/{name}")
        self._clean(generation, files)

    def _generation(self, generation: str, files: Files) -> None:
        (self._folder / generation).mkdir(mode=self._mode)
        for name, data in files.items():
            _write(self._folder / generation / name, data, 0o600 if name.endswith(".key") else 0o644)
        sync(self._folder / generation)

    def _link(self, name: str, target: str) -> None:
        place = self._folder / name
        if place.is_symlink() and str(place.readlink()) == target:
            return
        temporary = self._folder / f".{name}.{secrets.token_hex(4)}"
        temporary.symlink_to(target)
        temporary.replace(place)
        sync(self._folder)

    def _clean(self, generation: str, files: Files) -> None:
        """Remove earlier generations, and links to files that are no more."""
        for entry in self._folder.iterdir():
            if entry.name.startswith("..") and entry.name not in {DATA, generation}:
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.is_symlink() and entry.name not in {DATA, *files}:
                entry.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; a second writer waits. Makes the folder.

    Raises:
        ConfigError: the folder cannot be made or written.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(
            f"--dir {folder} cannot be written: {error.strerror}; give a folder that this user can write"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _files(generation: Path) -> dict[str, bytes]:
    try:
        names = sorted(generation.iterdir())
    except OSError:
        return {}
    found = {file.name: _bounded(file) for file in names}
    return {name: data for name, data in found.items() if data is not None}


def _bounded(file: Path) -> bytes | None:
    """The content of a regular file of bearable size."""
    try:
        data = read_regular_file(file, MAX_FILE + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_FILE else None


def _write(file: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as stream:  # noqa: PTH123 - opened above, with its mode from the start
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
