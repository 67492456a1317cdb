"""What every container on the machine gets besides its own: the machine's programs and the parcel, read-only."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.gpu.kit import find
from tests.gpu.parcel.layout import SEEN

SHARED: Final = ("/usr", "/opt", "/etc/ssl", "/etc/alternatives", "/etc/ld.so.cache")
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def interpreters() -> tuple[Path, Path]:
    """The Python of this machine that has its frameworks, and the one beneath it, which has its own library alone."""
    return Path(sys.executable), Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def environment() -> dict[str, str]:
    """How a program in a container finds the machine's programs and the driver's libraries."""
    mine, _ = interpreters()
    folders = dict.fromkeys([f"{SEEN}/bin", str(mine.parent), *SYSTEM_PATH.split(":")])
    found = [each for each in (find.library(find.CUDA), find.library(find.NVML)) if each is not None]
    libraries = dict.fromkeys(str(each.parent) for each in found)
    driver = {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
    return {"PATH": ":".join(folders), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **driver}


def write(target: Path, content: Path) -> None:
    """Write containerd's base specification; ``content`` is what is seen at ``SEEN``."""
    done = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True)
    spec: dict[str, Any] = json.loads(done.stdout)
    # As containerd's own default for pods: what a pod says decides.
    spec["process"].pop("rlimits", None)
    spec["linux"].pop("seccomp", None)
    spec["mounts"] += [_mount(str(source), str(source)) for source in _places()] + [_mount(str(content), SEEN)]
    target.write_text(json.dumps(spec))


def _places() -> Iterator[Path]:
    """Folders and files of the machine, each that is not inside another of them."""
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), *(each.parent.parent for each in interpreters())}
    fixed = [Path(each) for each in SHARED if Path(each).exists()]
    yield from fixed
    yield from sorted(each for each in prefixes if not _inside(each, [*fixed, *(prefixes - {each})]))


def _inside(place: Path, others: Iterable[Path]) -> bool:
    return any(place.is_relative_to(each) for each in others)


def _mount(source: str, destination: str) -> dict[str, Any]:
    kind = "rbind" if os.path.isdir(source) else "bind"  # noqa: PTH112 - as text, as the file has it
    return {"destination": destination, "type": "bind", "source": source, "options": [kind, "ro", "nosuid"]}
