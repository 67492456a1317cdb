"""Fetches the real ``nvidia-cuda-mps-control``: it answers its whole protocol without a GPU, so tests can ask it.

It is NVIDIA's and not ours to pass on, so it is never committed and never in an image: Debian's non-free package is
downloaded and unpacked into the user's cache. ``python -m tests.fakes.gpu.mps_binary`` prints where it is.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support import debian
from tests.support.need import missing

PACKAGE: Final = "nvidia-cuda-mps"
PROGRAM: Final = "nvidia-cuda-mps-control"
ENV: Final = "GPU_SHARE_MPS_CONTROL"
"""Path of a binary to use instead of fetching one."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-share"


class MpsUnobtainableError(RuntimeError):
    """The binary is not here and cannot be fetched; the message says why."""


def mps_control() -> Path:
    """The real control binary, fetched on first use.

    Raises:
        MpsUnobtainableError: this is no Debian, or its mirror cannot be reached.
    """
    if os.environ.get(ENV):
        return Path(os.environ[ENV])
    found = shutil.which(PROGRAM) or next(iter(sorted(CACHE.glob(f"{PACKAGE}-*/**/{PROGRAM}"))), None)
    return Path(found) if found else _fetch()


def need_mps_control() -> Path:
    """``mps_control`` for tests: skipped with the reason where it cannot be had, failed in CI."""
    try:
        return mps_control()
    except MpsUnobtainableError as error:
        missing(str(error))


def _fetch() -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        scratch = Path(folder)
        try:
            debian.download([PACKAGE], scratch, component="non-free")
            home = CACHE / f"{PACKAGE}-{debian.version(scratch, PACKAGE)}"
            debian.unpack(scratch, scratch / "unpacked")
            debian.place(scratch / "unpacked", home)
        except debian.PackagesUnobtainableError as error:
            raise MpsUnobtainableError(f"{error} (or set {ENV})") from error
    return next(iter(home.glob(f"**/{PROGRAM}")))


if __name__ == "__main__":
    try:
        print(mps_control())
    except MpsUnobtainableError as missing_binary:
        sys.exit(str(missing_binary))
