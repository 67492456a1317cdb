"""Find the four servers: given ones first, else the cache that ``tests.cluster.build`` fills."""

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.errors import BedError, MissingBinariesError

KUBERNETES: Final = "1.37.1"
ETCD: Final = "3.7.3"
KUBERNETES_MINOR: Final = "1.37."
ETCD_OLDEST: Final = (3, 5)
MODULES: Final = Path(__file__).parent / "modules"
KUBERNETES_NAMES: Final = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
ASSETS_VARIABLE: Final = "KUBEBUILDER_ASSETS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One server: where the cache keeps it, and what builds it (``module``: folder under ``modules``)."""

    name: str
    module: str
    package: str
    cache: Path


def cache_root() -> Path:
    """Folder of everything built here, shared by all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpu-share"


def wanted() -> tuple[Binary, ...]:
    """All four servers. Each cache folder carries the version and the hash of the go.sum it was built from."""
    kubernetes = cache_root() / f"kubernetes-v{KUBERNETES}-{_sum_hash('kubernetes')}"
    etcd = cache_root() / f"etcd-v{ETCD}-{_sum_hash('etcd')}"
    servers = [
        Binary(name=name, module="kubernetes", package=f"k8s.io/kubernetes/cmd/{name}", cache=kubernetes / name)
        for name in KUBERNETES_NAMES
    ]
    return (*servers, Binary(name="etcd", module="etcd", package="go.etcd.io/etcd/server/v3", cache=etcd / "etcd"))


def find(binary: Binary) -> Path | None:
    """Return the file to run, or None when it has to be built.

    Raises:
        BedError: ``KUBEBUILDER_ASSETS`` holds it in a version that cannot be used.
    """
    assets = os.environ.get(ASSETS_VARIABLE)
    if assets and (given := Path(assets) / binary.name).is_file():
        if not fits(binary, given):
            raise BedError(f"{given} is {_version_line(given)!r}; needed is {_needed(binary)}. Unset {ASSETS_VARIABLE}")
        return given
    on_path = shutil.which(binary.name)
    if on_path and fits(binary, Path(on_path)):
        return Path(on_path)
    return binary.cache if binary.cache.is_file() else None


def find_all() -> dict[str, Path]:
    """All four by name.

    Raises:
        MissingBinariesError: some are not there; the message names them and the command that builds them.
    """
    found = {binary.name: find(binary) for binary in wanted()}
    if missing := [name for name, path in found.items() if path is None]:
        raise MissingBinariesError(
            f"{', '.join(missing)} not found in {ASSETS_VARIABLE}, PATH or {cache_root()}: run `make e2e` "
            f"(or `python -m tests.cluster build`), which builds them with Go >= 1.26 in about 12 minutes"
        )
    return {name: path for name, path in found.items() if path}


def fits(binary: Binary, path: Path) -> bool:
    """Whether the file says it is a version these tests can use."""
    match = re.search(r"(\d+)\.(\d+)\.\d+", _version_line(path))
    if not match:
        return False
    if binary.module == "kubernetes":
        return match[0].startswith(KUBERNETES_MINOR)
    return (int(match[1]), int(match[2])) >= ETCD_OLDEST


def _needed(binary: Binary) -> str:
    return f"Kubernetes {KUBERNETES_MINOR}x" if binary.module == "kubernetes" else "etcd 3.5 or newer"


def _version_line(path: Path) -> str:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).split("\n", 1)[0]


def _sum_hash(module: str) -> str:
    return hashlib.sha256((MODULES / module / "go.sum").read_bytes()).hexdigest()[:12]
