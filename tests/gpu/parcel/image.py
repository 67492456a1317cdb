"""The one layer all containers have: folders and links, over which the machine's own ``/usr`` and the parcel lie.

Every name an image may be asked for by stands for it: the product's, and those of ``examples/frameworks`` that run on a
machine which has the framework.
"""

import io
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tests.gpu.parcel.layout import ROOT, SEEN, USER
from tests.testbed.cluster import archive

PRODUCT: Final = ("gpu-share", "gpu-share-simulator")
FRAMEWORKS: Final = ("pytorch", "jax", "cupy", "onnxruntime")
PAUSE: Final = "docker.io/gpu-share-bed/pause:1"
PLAIN: Final = "gpu-share-bed/machine:1"
"""The machine's own programs, without an entry point."""
FOLDERS: Final = (
    "dev", "etc", "etc/ssl", "etc/alternatives", "home", "mnt", "opt", "proc", "root", "run", "sys", "usr", "var",
    "var/lib", "var/log", SEEN[1:],
)  # fmt: skip
LINKS: Final = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "/run"}
OPEN: Final = ("tmp", "var/tmp")
FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\ntenant:x:{USER}:{USER}:tenant:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/ld.so.cache": "",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def write(target: Path, busybox: Path, environment: Mapping[str, str]) -> None:
    """Write the archive with all images; ``environment`` is what the machine's programs are found by."""
    layer, bare = _layer(), archive.busybox_layer(busybox)
    env = [f"{name}={value}" for name, value in environment.items()]
    mine = {f"docker.io/library/{name}:{_version()}": [f"{SEEN}/bin/{name}"] for name in PRODUCT}
    others: dict[str, Sequence[str]] = {_full(name): [] for name in (*_of_examples(), PLAIN)}
    entries = [
        archive.entry(name, {"Entrypoint": list(first), "Env": env}, layer) for name, first in (mine | others).items()
    ]
    archive.write(target, [archive.entry(PAUSE, {"Entrypoint": list(archive.FOREVER)}, bare), *entries])


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _of_examples() -> list[str]:
    return sorted({each["image"] for name in FRAMEWORKS for each in _containers(name)})


def _containers(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for document in yaml.safe_load_all((ROOT / "examples" / "frameworks" / f"{name}.yaml").read_text()):
        spec = (document or {}).get("spec", {})
        found += spec.get("template", {}).get("spec", spec).get("containers", [])
    return found


def _full(name: str) -> str:
    first = name.split("/", 1)[0]
    if "." in first or ":" in first:
        return name
    return f"docker.io/{name}" if "/" in name else f"docker.io/library/{name}"


def _layer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (*FOLDERS, *OPEN):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in OPEN else 0o755
            tar.addfile(entry)
        for name, leads in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, leads
            tar.addfile(entry)
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
