"""Builds the simulated ``libnvidia-ml.so.1``; says plainly what is missing where there is no C compiler.

``python -m tests.fakegpu.build`` prints the folder to put into LD_LIBRARY_PATH (before exec: the loader reads it then).
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SOURCES: Final = ("nvml.c", "sim.c", "sim.h")
FLAGS: Final = (
    "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden",
    "-Wl,-soname,libnvidia-ml.so.1",
)  # fmt: skip
LIBRARY: Final = "libnvidia-ml.so.1"


class NoCompilerError(RuntimeError):
    """There is no C compiler here."""

    def __init__(self) -> None:
        super().__init__("no C compiler (cc, gcc or clang; or set CC): install one to build the simulated NVML library")


def compiler() -> str | None:
    """The C compiler to use, or ``None``."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((found for name in wanted if (found := shutil.which(name))), None)


def library_folder() -> Path:
    """Build what is not built yet and return the folder to put into LD_LIBRARY_PATH.

    Raises:
        NoCompilerError: there is no compiler.
        RuntimeError: the compiler failed; its words are in the message.
    """
    cc = compiler()
    if cc is None:
        raise NoCompilerError
    digest = hashlib.sha256("\0".join([*FLAGS, *((HERE / name).read_text() for name in SOURCES)]).encode())
    folder = HERE.parents[1] / ".build" / "fakegpu" / digest.hexdigest()[:12]
    if not (folder / LIBRARY).exists():
        _compile(cc, folder)
    return folder


def _compile(cc: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / LIBRARY
        units = [str(HERE / name) for name in SOURCES if name.endswith(".c")]
        done = subprocess.run([cc, *FLAGS, "-o", str(made), *units], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{cc} could not build {LIBRARY}:\n{done.stderr}")
        # Renamed whole: another process may build or load it at the same moment.
        made.rename(folder / LIBRARY)


if __name__ == "__main__":
    print(library_folder())
