"""The root disk of that machine: busybox, and this machine's Python with what the guest's program imports."""

import json
import lzma
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.testbed.cluster import packages
from tests.testbed.vm import disk, rootfs

PROJECT: Final = Path(__file__).resolve().parents[3]

SIZE: Final = "512M"
PROGRAM: Final = "tests.safety.power.guest"
CODE: Final = ("enforcer", "gpushare", "tests/safety/power")
EXCLUDED_GPUS: Final = ("test", "site-packages", "idlelib", "config-*", "lib2to3", "ensurepip", "tkinter", "turtledemo")
LATER: Final = ("pynvml",)
"""Imported by programs that the enforcer starts."""
MODULES: Final = ("crc32c_generic", "libcrc32c", "xfs")
STATE_DISK: Final = "/dev/vdb"
STATE: Final = "/state"
PORTS: Final = "/dev/vport0p1 /dev/vport0p2"
LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
ASKED: Final = f"""\
import json, sys, {PROGRAM}
mapped = sorted({{line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}})
print(json.dumps([sorted({{name.partition(".")[0] for name in sys.modules}}), mapped, sys.path]))
"""
INIT: Final = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
$b mount -t tmpfs tmpfs /run
$b mount -t tmpfs tmpfs /tmp
$b mount -t cgroup2 cgroup2 /sys/fs/cgroup
for each in {modules}; do [ -f /modules/$each.ko ] && $b insmod /modules/$each.ko; done
export HOME=/tmp PYTHONPATH={path} LD_LIBRARY_PATH={libraries}
cd {project}
{python} -m {program} {disk} {state} {ports}
echo "ended with $?"
$b poweroff -f
"""


def root(folder: Path) -> Path:
    """Make the disk in a folder; a few seconds."""
    top, python = folder / "root", Path(sys.executable).resolve()
    done = subprocess.run([sys.executable, "-c", ASKED], cwd=PROJECT, capture_output=True, text=True, check=True)
    imported, mapped, places = json.loads(done.stdout)
    base = Path(sys.base_prefix)
    library = Path(f"lib/python{sys.version_info.major}.{sys.version_info.minor}")
    _copy(top, base / library, EXCLUDED_GPUS)
    for file in (python, Path(LOADER), *_named(mapped)):
        _copy(top, file)
    for name in CODE:
        _copy(top, PROJECT / name)
    path = [str(PROJECT), *(each for each in places if each.endswith("site-packages"))]
    for name in (*imported, *LATER):
        for place in path[1:]:
            for found in (Path(place) / name, Path(place) / f"{name}.py"):
                if found.exists():
                    _copy(top, found)
    _modules(top / "modules")
    for name in ("proc", "sys", "dev", "run", "tmp", "state", "bin", "sbin"):
        (top / name).mkdir(exist_ok=True)
    shutil.copy2(packages.busybox(), top / "bin/busybox")
    init = top / "sbin/init"
    init.write_text(
        INIT.format(
            modules=" ".join(MODULES), path=":".join(path), libraries=":".join(_folders(mapped)), project=PROJECT,
            python=python, program=PROGRAM, disk=STATE_DISK, state=STATE, ports=PORTS,
        )
    )  # fmt: skip
    init.chmod(0o755)
    target = folder / "root.img"
    disk.run("mke2fs", "-q", "-t", "ext4", "-d", str(top), str(target), SIZE)
    shutil.rmtree(top)
    return target


def _copy(top: Path, what: Path, left_out: Iterable[str] = ()) -> None:
    where = top / str(what).lstrip("/")
    where.parent.mkdir(parents=True, exist_ok=True)
    if what.is_dir():
        shutil.copytree(what, where, ignore=shutil.ignore_patterns(*left_out), dirs_exist_ok=True, symlinks=True)
    else:
        shutil.copy2(what, where)


def _named(files: Iterable[str]) -> Iterable[Path]:
    """Libraries under the names that programs ask for, which are links here."""
    for file in map(Path, files):
        yield from (each for each in file.parent.glob(f"{file.name.partition('.so')[0]}.so*") if each.samefile(file))


def _folders(files: Iterable[str]) -> list[str]:
    return sorted({str(Path(file).parent) for file in files})


def _modules(folder: Path) -> None:
    folder.mkdir(parents=True)
    tree = rootfs.tree() / "root/usr/lib/modules"
    for name in MODULES:
        for file in tree.rglob(f"{name}.ko.xz"):
            (folder / f"{name}.ko").write_bytes(lzma.decompress(file.read_bytes()))
