"""What the machine has to have, looked at before anything is started; each line says what is missing and what to do."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.gpu.kit import find, real
from tests.gpu.parcel import container_spec
from tests.gpu.parcel.layout import BINARIES, PRODUCT, ROOT, SITE, USER
from tests.testbed.cluster import cgroups
from tests.testbed.cluster.errors import BedError

PROGRAMS: Final = ("mount", "umount", "unshare", "sh")
CONTROLLERS: Final = {"cpu", "memory", "pids"}
LEAST_DISK_GIB, LEAST_MEMORY_GIB = 4, 4
NAMESPACES: Final = ("unshare", "--mount", "--net", "--cgroup", "--uts", "--propagation=private", "true")
MODULES: Final = (
    "yaml", "cryptography", "kubernetes", "grpc", "google.protobuf", "structlog", "orjson", "flask", "pynvml",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: whether it is well, and what was found."""

    good: bool
    what: str
    said: str

    def __str__(self) -> str:
        return f"{'ok ' if self.good else 'NO '} {self.what:<18} {self.said}"


def examine(parcel: Path, home: Path, backend: str) -> list[Finding]:
    """Look at everything."""
    found = [*_rights(), *_cgroups(), *_room(home), *_system(), *_parcel(parcel)]
    return found + list(_gpu(parcel) if backend == "real" else ())


def _rights() -> Iterator[Finding]:
    yield Finding(os.geteuid() == 0, "root", f"uid {os.geteuid()}")
    lacking = [each for each in PROGRAMS if shutil.which(each) is None]
    yield Finding(not lacking, "programs", f"lacking: {', '.join(lacking)}" if lacking else ", ".join(PROGRAMS))
    hosts = Path("/etc/hosts")
    yield Finding(hosts.is_file(), "names of hosts", str(hosts) if hosts.is_file() else f"lacking: {hosts}")
    if not lacking:
        done = subprocess.run(NAMESPACES, capture_output=True, text=True, check=False)
        yield Finding(done.returncode == 0, "namespaces", done.stderr.strip() or "mount, net, cgroup, uts")
    inside = Path("/proc/self/ns/pid").readlink()
    first = Path("/proc/1/comm").read_text().strip()
    yield Finding(good=True, what="pid namespace", said=f"{inside}, whose first process is {first}")


def _cgroups() -> Iterator[Finding]:
    try:
        mounted = cgroups.hierarchies()
    except BedError as error:
        yield Finding(good=False, what="cgroups", said=str(error))
        return
    unified = next((each for each in mounted if each.where == Path("/sys/fs/cgroup")), None)
    if unified is None:
        yield Finding(good=True, what="cgroups", said=f"version 1: {len(mounted)} hierarchies")
        return
    have = set((unified.where / "cgroup.controllers").read_text().split())
    lacking = CONTROLLERS - have
    said = f"version 2 with {' '.join(sorted(have))}" + (f"; lacking {' '.join(sorted(lacking))}" if lacking else "")
    yield Finding(not lacking, "cgroups", said)
    writable = os.access(unified.where / "cgroup.subtree_control", os.W_OK)
    yield Finding(writable, "cgroup tree", "writable" if writable else "/sys/fs/cgroup is read-only")


def _room(home: Path) -> Iterator[Finding]:
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free / 2**30
    yield Finding(free >= LEAST_DISK_GIB, "disk", f"{free:.0f} GiB free at {home}")
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 2**20
    yield Finding(memory >= LEAST_MEMORY_GIB, "memory", f"{memory:.0f} GiB available, {os.cpu_count()} CPUs")


def _system() -> Iterator[Finding]:
    merged = all(Path(f"/{each}").is_symlink() for each in ("bin", "sbin", "lib"))
    yield Finding(merged, "merged /usr", "yes" if merged else "no: containers find programs below /usr alone")
    uname = os.uname()
    yield Finding(uname.machine == "x86_64", "kernel", f"{uname.release} {uname.machine}")


def _parcel(parcel: Path) -> Iterator[Finding]:
    done = subprocess.run([parcel / BINARIES / "runc", "--version"], capture_output=True, text=True, check=False)
    yield Finding(done.returncode == 0, "runc", (done.stdout or done.stderr).splitlines()[0])
    env = {**os.environ, "PYTHONPATH": f"{parcel / PRODUCT}:{parcel / SITE}"}
    script = f"import {', '.join(MODULES)}, gpushare_cli; import gpushare, enforcer"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()[-1:] or [f"Python {sys.version.split()[0]} at {sys.executable}"]
    yield Finding(done.returncode == 0, "Python packages", said[0])


def _gpu(parcel: Path) -> Iterator[Finding]:
    setup = real.prepare()
    yield Finding(not setup.mps_problem, "MPS programs", setup.mps_problem or setup.mps_control)
    files = sorted(each.name for each in Path("/dev").glob("nvidia*"))
    good = {"nvidia0", "nvidiactl", "nvidia-uvm"} <= set(files)
    yield Finding(good, "device files", " ".join(files) or "none below /dev")
    site = {"PYTHONPATH": f"{parcel / PRODUCT}:{parcel / SITE}"}
    ask = [sys.executable, "-m", "tests.gpu.parcel.truth", "real"]
    done = subprocess.run(ask, env={**os.environ, **site}, cwd=ROOT, capture_output=True, text=True, check=False)
    yield Finding(done.returncode == 0, "driver", (done.stdout or done.stderr).strip()[-400:])
    # As a tenant's container does it, which has another user; what needs no tenant can be run all the same.
    load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({find.CUDA!r})"]
    env = container_spec.environment()
    done = subprocess.run(load, env=env, cwd="/", user=USER, capture_output=True, text=True, check=False)
    yield Finding(good=True, what="CUDA for a tenant", said=f"no: {done.stderr[-400:]}" if done.returncode else "yes")
