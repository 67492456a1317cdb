"""Find a cluster's programs: given ones first, else the cache that ``tests.testbed.cluster.build`` fills.

In groups, so that tests of the control plane do not need what a node needs.
"""

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.testbed.cluster import versions
from tests.testbed.cluster.errors import BedError, MissingBinariesError

ETCD: Final = "3.7.3"
CONTAINERD: Final = "2.4.2"
OLDER_CONTAINERD: Final = "2.1.9"
HELM: Final = "4.3.1"
PROMETHEUS: Final = "3.16.0"
OLDEST: Final = {"etcd": (3, 5), "containerd": (2, 1), "helm": (3, 18), "prometheus": (3, 10)}
MODULES: Final = Path(__file__).parent / "modules"
KUBERNETES_NAMES: Final = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
KUBERNETES_NODE_NAMES: Final = ("kubelet", "kube-proxy", "kubectl")
CONTAINERD_NAMES: Final = ("containerd", "containerd-shim-runc-v2", "ctr")
CONTAINERD_PACKAGE: Final = "github.com/containerd/containerd/v2"
PROMETHEUS_PACKAGE: Final = "github.com/prometheus/prometheus"
VERSION_ARGUMENTS: Final = {
    "kubectl": ("version", "--client"),
    "helm": ("version", "--short"),
    "containerd-shim-runc-v2": ("-v",),
}
ASSETS_VARIABLE: Final = "KUBEBUILDER_ASSETS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """One server: where the cache keeps it, and what builds it (``module``: folder under ``modules``)."""

    name: str
    module: str
    version: str
    package: str
    cache: Path


def cache_root() -> Path:
    """Folder of everything built here, shared by all checkouts of this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpu-share"


class Group(StrEnum):
    """Which part of a cluster a binary belongs to."""

    CONTROL_PLANE = "control plane"
    NODE = "node"
    OLDER_NODE = "older node"
    """A kubelet of the oldest Kubernetes, beside an API server of the newest; and an older containerd."""
    CHART = "chart"
    MONITORING = "monitoring"
    PARCEL = "parcel"


def wanted(group: Group = Group.CONTROL_PLANE) -> tuple[Binary, ...]:
    """Everything of a group, cheapest first after what it shares most with.

    Each cache folder carries the version and the hash of the go.sum it was built from.
    """
    if group is Group.CONTROL_PLANE:
        etcd = _Module("etcd", ETCD)
        kubernetes = _Module(versions.module(), versions.VERSIONS[versions.chosen()])
        return (*_kubernetes(kubernetes, KUBERNETES_NAMES), etcd.binary("etcd", "go.etcd.io/etcd/server/v3"))
    if group is Group.CHART:
        return (_Module("helm", HELM).binary("helm", "helm.sh/helm/v4/cmd/helm"),)
    if group is Group.MONITORING:
        return _prometheus("promtool"), _prometheus("prometheus")
    if group is Group.PARCEL:
        return _parcel()
    if group is Group.OLDER_NODE:
        oldest = _Module(f"kubernetes-node-{versions.OLDEST}", versions.VERSIONS[versions.OLDEST])
        return (*_kubernetes(oldest, ("kubelet",)), *_containerd(_Module("containerd-2.1", OLDER_CONTAINERD)))
    newest = _Module("kubernetes-node", versions.VERSIONS[versions.NEWEST])
    return (*_kubernetes(newest, KUBERNETES_NODE_NAMES), *_containerd(_Module("containerd", CONTAINERD)))


def _parcel() -> tuple[Binary, ...]:
    """What is carried to a machine with a GPU: programs that share most of their code are one program there."""
    kubernetes = _Module("kubernetes-parcel", versions.VERSIONS[versions.NEWEST])
    containerd = _Module("containerd", CONTAINERD)
    shim = "containerd-shim-runc-v2"
    return (
        kubernetes.binary("kubernetes-parcel", "gpu-share.io/tests/kubernetes-parcel"),
        _Module("etcd", ETCD).binary("etcd", "go.etcd.io/etcd/server/v3"),
        containerd.binary("containerd-parcel", "gpu-share.io/tests/containerd/parcel"),
        containerd.binary(shim, f"{CONTAINERD_PACKAGE}/cmd/{shim}"),
        _prometheus("prometheus"),
    )


def _containerd(module: "_Module") -> list[Binary]:
    return [module.binary(name, f"{CONTAINERD_PACKAGE}/cmd/{name}") for name in CONTAINERD_NAMES]


def _prometheus(name: str) -> Binary:
    return _Module("prometheus", PROMETHEUS).binary(name, f"{PROMETHEUS_PACKAGE}/cmd/{name}")


@dataclass(frozen=True, slots=True)
class _Module:
    """A folder under ``modules`` and the version it pins."""

    name: str
    version: str

    def binary(self, name: str, package: str) -> Binary:
        digest = hashlib.sha256((MODULES / self.name / "go.sum").read_bytes()).hexdigest()[:12]
        home = cache_root() / f"{self.name}-v{self.version}-{digest}"
        return Binary(name=name, module=self.name, version=self.version, package=package, cache=home / name)


def _kubernetes(module: _Module, names: tuple[str, ...]) -> list[Binary]:
    return [module.binary(name, f"k8s.io/kubernetes/cmd/{name}") for name in names]


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


def find_all(*groups: Group) -> dict[str, Path]:
    """All of some groups by name, those of the control plane where none is named.

    Raises:
        MissingBinariesError: some are not there; the message names them and the command that builds them.
    """
    asked = groups or (Group.CONTROL_PLANE,)
    found = {binary.name: find(binary) for group in asked for binary in wanted(group)}
    if missing := [name for name, path in found.items() if path is None]:
        raise MissingBinariesError(
            f"{', '.join(missing)} not found in {ASSETS_VARIABLE}, PATH or {cache_root()}: run `{_command(asked)}` "
            "(or `python -m tests.testbed.cluster build`), which builds them with Go >= 1.26 in about 15 minutes"
        )
    return {name: path for name, path in found.items() if path}


def _command(groups: tuple[Group, ...]) -> str:
    return "make e2e" if Group.NODE in groups else "make integration"


def fits(binary: Binary, path: Path) -> bool:
    """Whether the file says it is a version these tests can use."""
    match = re.search(r"(\d+)\.(\d+)\.\d+", _version_line(path))
    if not match:
        return False
    if binary.module not in OLDEST:
        return match[0].startswith(_minor(binary))
    return (int(match[1]), int(match[2])) >= OLDEST[binary.module]


def _needed(binary: Binary) -> str:
    if binary.module not in OLDEST:
        return f"{binary.module.partition('-')[0].capitalize()} {_minor(binary)}x"
    return f"{binary.module} {'.'.join(str(part) for part in OLDEST[binary.module])} or newer"


def _minor(binary: Binary) -> str:
    """``1.37.``: any patch of it will do."""
    return binary.version.rpartition(".")[0] + "."


def _version_line(path: Path) -> str:
    asked = VERSION_ARGUMENTS.get(path.name, ("--version",))
    try:
        done = subprocess.run([path, *asked], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return " ".join((done.stdout or done.stderr).strip().splitlines()[:2])
