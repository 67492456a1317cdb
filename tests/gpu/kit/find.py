"""Where a machine keeps its driver's libraries and the MPS programs: often in a folder that is on no path at all.

MPS programs of another version than the driver's are never used: they are a protocol of that driver's own.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CONTROL: Final = "nvidia-cuda-mps-control"
SERVER: Final = "nvidia-cuda-mps-server"
CUDA: Final = "libcuda.so.1"
NVML: Final = "libnvidia-ml.so.1"
LIBRARY_FOLDERS: Final = (
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/home/kubernetes/bin/nvidia/lib64",
)  # fmt: skip
PROGRAM_FOLDERS: Final = ("/usr/local/nvidia/bin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/cuda/bin")
VERSION: Final = re.compile(rb"(?<![0-9.])([0-9]{3}\.[0-9]{2,3}(?:\.[0-9]{2})?)(?![0-9.])")
LOADED: Final = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Both MPS programs, or the sentence that says why there are none to be used."""

    control: str = ""
    server: str = ""
    problem: str = ""


def library(name: str, folders: Iterable[str] = LIBRARY_FOLDERS) -> Path | None:
    """A library of the driver: where the loader looks, then where drivers are put."""
    own = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    places = [Path(folder) / name for folder in (*own, *folders) if folder]
    return next((place for place in (*places[: len(own)], *_cached(name), *places) if place.exists()), None)


def _cached(name: str) -> Iterator[Path]:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin:/bin")
    if ldconfig is None:
        return
    done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.split(maxsplit=1)[:1] == [name] and "=>" in line:
            yield Path(line.rsplit("=> ", 1)[1])


def program_folders(libraries: Iterable[Path | None]) -> list[Path]:
    """Where programs of a driver may lie, given where its libraries are."""
    near = [
        base / name
        for found in libraries if found is not None
        for base in (found.parent, found.parent.parent, found.resolve().parent.parent)
        for name in ("bin", "sbin")
    ]  # fmt: skip
    return [*map(Path, os.get_exec_path()), *near, *map(Path, PROGRAM_FOLDERS)]


def programs(driver: str, folders: Iterable[Path], control: str = "", server: str = "") -> Programs:
    """Find both MPS programs of this driver.

    Args:
        driver: its version as NVML says it.
        folders: where to look.
        control: path to use instead of looking.
        server: likewise.
    """
    places = list(folders)
    first = Path(control) if control else _first(CONTROL, places)
    if first is None or not first.exists():
        return Programs(problem=f"{control or CONTROL} is not here (looked in {_listed(places)}); see --mps-control")
    second = Path(server) if server else _first(SERVER, [first.parent, first.parent.parent / "sbin", *places])
    if second is None or not second.exists():
        return Programs(problem=f"{server or SERVER} is not here (looked beside {first} and in {_listed(places)})")
    other = [f"{each} is of {_said(each)}" for each in (first, second) if not _fits(each, driver)]
    if other:
        return Programs(problem=f"{' and '.join(other)}, the driver is {driver}: never mixed")
    return Programs(control=str(first), server=str(second))


def versions(program: Path) -> frozenset[str]:
    """The driver versions a program names in its bytes: its own, or none at all (servers up to 535)."""
    try:
        return frozenset(found.decode() for found in VERSION.findall(program.read_bytes()))
    except OSError:
        return frozenset()


def loaded_driver(file: Path = LOADED) -> str:
    """The version of the loaded kernel module, without NVML; empty where none is."""
    try:
        found = VERSION.search(file.read_bytes())
    except OSError:
        return ""
    return found[1].decode() if found else ""


def _fits(program: Path, driver: str) -> bool:
    named = versions(program)
    # A control program names its version; a server need not, and then its place beside the control program has to do.
    return driver in named if named or program.name == CONTROL else True


def _said(program: Path) -> str:
    return " or ".join(sorted(versions(program))) or "no version it names"


def _first(name: str, folders: Iterable[Path]) -> Path | None:
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _listed(folders: Iterable[Path]) -> str:
    return ", ".join(dict.fromkeys(map(str, folders)))
