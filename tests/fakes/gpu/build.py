"""Builds the simulated ``libnvidia-ml.so.1`` and ``libcuda.so.1``, and the client of the stand-in for MPS.

Without a C compiler it raises an error that says so.

``python -m tests.fakes.gpu.build`` prints the folder for LD_LIBRARY_PATH (before exec: the loader reads it then);
with an argument it builds into that folder, as an image wants it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SHARED: Final = ("sim.c", "clients.c", "exports.c")
MPS_CLIENT: Final = "mps-client"
BUILT: Final = {
    "libnvidia-ml.so.1": ("nvml.c", *SHARED),
    "libcuda.so.1": ("cuda.c", "allocators.c", "process.c", *SHARED),
    MPS_CLIENT: ("mps_client.c",),
}
HEADERS: Final = ("sim.h", "cuda.h")
SOURCES: Final = (*sorted({unit for units in BUILT.values() for unit in units}), *HEADERS)
FLAGS: Final = ("-std=c11", "-O3", "-Wall", "-Wextra", "-Werror")
LIBRARY_FLAGS: Final = ("-fPIC", "-shared", "-fvisibility=hidden")


class NoCompilerError(RuntimeError):
    """There is no C compiler here."""

    def __init__(self) -> None:
        super().__init__(
            "no C compiler (cc, gcc or clang; or set CC): install one to build the simulated NVIDIA libraries"
        )


def compiler() -> str | None:
    """The C compiler to use, or ``None``."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((found for name in wanted if (found := shutil.which(name))), None)


def library_folder(into: Path | None = None) -> Path:
    """Build what is not built yet and return the folder to put into LD_LIBRARY_PATH.

    Args:
        into: a folder other than the checkout's own for this version of the sources.

    Raises:
        NoCompilerError: there is no compiler.
        RuntimeError: the compiler failed; its words are in the message.
    """
    cc = compiler()
    if cc is None:
        raise NoCompilerError
    digest = hashlib.sha256(
        "\0".join([*FLAGS, *LIBRARY_FLAGS, *((HERE / name).read_text() for name in SOURCES)]).encode()
    )
    folder = into or HERE.parents[2] / ".build" / "fakes" / digest.hexdigest()[:12]
    for name, units in BUILT.items():
        if not (folder / name).exists():
            _compile(cc, folder, name, units)
    return folder


def _compile(cc: str, folder: Path, name: str, units: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        files = [str(HERE / unit) for unit in units]
        more = (*LIBRARY_FLAGS, f"-Wl,-soname,{name}") if ".so" in name else ()
        command = [cc, *FLAGS, *more, "-o", str(made), *files]
        # The compiler leaves its own files behind when it is interrupted.
        environment = {**os.environ, "TMPDIR": scratch}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{cc} could not build {name}:\n{done.stderr}")
        # Renamed whole: another process may build or load it at the same moment.
        made.rename(folder / name)


if __name__ == "__main__":
    print(library_folder(Path(sys.argv[1]) if sys.argv[1:] else None))
